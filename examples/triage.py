"""Sort support tickets. `select` compares likelihoods, so the answer is one of the choices.

Run it with `branchline run examples/triage.py`.
"""

import branchline as bl

TEAMS = ["billing", "shipping", "technical"]
EXAMPLES = """\
Ticket: I was charged twice for the same order.
Team: billing
Urgent: yes

Ticket: How long does delivery to Norway take?
Team: shipping
Urgent: no

Ticket: The app crashes whenever I open the settings.
Team: technical
Urgent: yes

Ticket: Please send me an invoice for last month.
Team: billing
Urgent: no
"""
TICKETS = [
    "My parcel was marked as delivered, but it is not here.",
    "I cannot log in since the last update, it says error 502.",
    "My card was charged although I cancelled the subscription.",
    "Do you also deliver to a post office?",
    "The export button does nothing in my browser.",
    "Where do I find the receipt for my payment?",
]


@bl.function
def triage(s, ticket):
    s += EXAMPLES
    s += f"\nTicket: {ticket}\nTeam: "
    s += bl.select("team", TEAMS)
    s += "\nUrgent: "
    s += bl.select("urgent", ["yes", "no"])


if __name__ == "__main__":
    states = triage.run_batch([{"ticket": ticket} for ticket in TICKETS])
    for ticket, state in zip(TICKETS, states, strict=True):
        mark = "!" if state["urgent"] == "yes" else " "
        print(f"{mark} {state['team']:<10} {ticket}")
    asked = sum(state.get_meta_info("team")["prompt_tokens"] for state in states)
    cached = sum(state.get_meta_info("team")["cached_tokens"] for state in states)
    print(f"\n{cached} of {asked} prompt tokens came from the cache")
