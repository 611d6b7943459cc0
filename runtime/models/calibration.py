"""The text over which a model's activations are measured before they are rounded to 8 bits."""

# About 500 tokens of what models are asked to read and to write: prose, a dialogue, code in several
# languages, figures, markup, and a few words that are not English.
CALIBRATION_TEXT = """\
The ferry left at a quarter past six, when the harbour was still dark and the gulls had not yet made
up their minds about the weather. Marta stood at the rail with her collar turned up. "You could have
told me sooner," she said.

Tides are caused mainly by the Moon, and to a lesser degree by the Sun. Because the Earth turns
beneath two bulges of water, most coasts see two high tides each day, about 12 hours and 25 minutes
apart.

User: How many boxes do I need if I have 146 jars and every box holds 12?
Assistant: Divide 146 by 12: that is 12 boxes with 2 jars left over, since 12 × 12 = 144. You need
13 boxes, and the last one will have room for 10 more jars.

```python
def running_mean(values: list[float], width: int = 3) -> list[float]:
    \"\"\"The mean of each window of `width` neighbours.\"\"\"
    if width < 1:
        raise ValueError(f"width={width}: must be positive")
    return [sum(values[i : i + width]) / width for i in range(len(values) - width + 1)]
```

```sql
SELECT city, COUNT(*) AS visits FROM trips WHERE year >= 2019 GROUP BY city ORDER BY visits DESC;
```

# Lentil soup
1. Rinse 250 g of red lentils; chop one onion and two carrots.
2. Fry the onion in olive oil until it is soft, then add cumin, the carrots and 1.2 litres of stock.

Let f(x) = 3x² − 2x + 1. Its derivative is f'(x) = 6x − 2, so the minimum lies at x = 1/3.

Dear Ms Okafor, thank you for your order of 2 May. Unfortunately the blue lamp is out of stock until
June. Shall we refund the £64.90? Kind regards, Tomás Lindqvist

Das Museum ist montags geschlossen. ¿Dónde está la estación? Il pleut depuis trois jours.
"""
