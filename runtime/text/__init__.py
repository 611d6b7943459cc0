"""Text and tokens: what a prompt's pieces are as ids, and what generated ids are as text.

What this package promises:

* Special tokens come from template text only; a program's text can never become one, nor can what
  the messages of a conversation say.
* A stream never shows half a character or the start of a stop that then completes, and takes
  nothing back.
* A tokenizer or template that it cannot follow exactly is refused by name.
"""

from branchline.runtime.text.chat_template import cut_chat_template
from branchline.runtime.text.conversation import chars_in
from branchline.runtime.text.detokenizer import Detokenizer
from branchline.runtime.text.stream import TextStream
from branchline.runtime.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "TextStream", "Tokenizer", "chars_in", "cut_chat_template"]
