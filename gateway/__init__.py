"""The HTTP gateway: OpenAI's protocol, metrics and the page, in a process of its own.

It is a client of the wire protocol like any other and imports neither torch nor the runtime.
"""
