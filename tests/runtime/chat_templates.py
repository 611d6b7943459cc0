"""Chat templates written in the ways of well-known families of models."""

from __future__ import annotations

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# The system text is part of the first user turn; contents are stripped; BOS and EOS around turns.
LLAMA2 = """
{%- if messages[0]['role'] == 'system' -%}
  {%- set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' -%}
  {%- set rest = messages[1:] -%}
{%- else -%}
  {%- set system, rest = '', messages -%}
{%- endif -%}
{%- for m in rest -%}
  {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('Turns must alternate: user, assistant, user, and so on') -}}
  {%- endif -%}
  {%- set text = system + m['content'] if loop.first else m['content'] -%}
  {%- if m['role'] == 'user' -%}
    {{- bos_token + '[INST] ' + text.strip() + ' [/INST]' -}}
  {%- else -%}
    {{- ' ' + text.strip() + ' ' + eos_token -}}
  {%- endif -%}
{%- endfor -%}
"""

# A date, tools in the first user turn as indented JSON, calls as JSON, results under another role.
LLAMA3 = """
{{- bos_token }}
{%- set date = date_string if date_string is defined else strftime_now('%d %b %Y') %}
{%- if messages[0].role == 'system' %}
  {%- set system, messages = messages[0].content | trim, messages[1:] %}
{%- else %}
  {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + date + '\n\n' + system }}
{{- '<|eot_id|>' }}
{%- if tools is not none and messages %}
  {%- set first, messages = messages[0].content | trim, messages[1:] %}
  {{- '<|start_header_id|>user<|end_header_id|>\n\nAnswer with a call of one of these:\n\n' }}
  {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{% endfor %}
  {{- first + '<|eot_id|>' }}
{%- endif %}
{%- for m in messages %}
  {%- if m.role in ('tool', 'ipython') %}
    {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
    {%- if m.content is mapping %}{{- m.content | tojson }}{% else %}{{- m.content }}{% endif %}
    {{- '<|eot_id|>' }}
  {%- elif 'tool_calls' in m %}
    {%- if m.tool_calls | length != 1 %}
      {{- raise_exception('One call at a time, please') }}
    {%- endif %}
    {%- set call = m.tool_calls[0].function %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", ' }}
    {{- '"parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
  {%- else %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}
    {{- m.content | trim + '<|eot_id|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""

# Strict alternation, tools before the last user turn, ids of exactly nine characters.
MISTRAL = """
{%- if messages[0]['role'] == 'system' %}
  {%- set system, turns = messages[0]['content'], messages[1:] %}
{%- else %}
  {%- set turns = messages %}
{%- endif %}
{%- set asked = turns | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(at=0) %}
{%- for m in turns if m.role in ('user', 'assistant') and not m.tool_calls %}
  {%- if (m['role'] == 'user') != (ns.at % 2 == 0) %}
    {{- raise_exception('User and assistant must take turns') }}
  {%- endif %}
  {%- set ns.at = ns.at + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for m in turns %}
  {%- if m.role == 'user' %}
    {%- if tools is not none and m == asked[-1] %}
      {{- '[AVAILABLE_TOOLS] [' }}
      {%- for tool in tools %}
        {{- '{"type": "function", "function": {' }}
        {%- for key, value in tool.function.items() if key != 'return' %}
          {{- ', ' if not loop.first }}{{- '"' + key + '": ' }}
          {{- '"' + value + '"' if value is string else value | tojson }}
        {%- endfor %}
        {{- '}}' }}{{- ', ' if not loop.last }}
      {%- endfor %}
      {{- '][/AVAILABLE_TOOLS]' }}
    {%- endif %}
    {{- '[INST] ' }}
    {%- if loop.last and system is defined %}{{- system + '\n\n' }}{% endif %}
    {{- m.content + '[/INST]' }}
  {%- elif m.tool_calls is defined and m.tool_calls is not none %}
    {{- '[TOOL_CALLS] [' }}
    {%- for call in m.tool_calls %}
      {%- if call.id is not defined or call.id | length != 9 %}
        {{- raise_exception('The id of a call has nine characters') }}
      {%- endif %}
      {%- set out = call.function | tojson %}
      {{- out[:-1] + ', "id": "' + call.id + '"}' }}
      {{- ', ' if not loop.last else ']' + eos_token }}
    {%- endfor %}
  {%- elif m.role == 'assistant' %}
    {{- ' ' + m.content | trim + eos_token }}
  {%- elif m.role == 'tool' %}
    {{- '[TOOL_RESULTS] {"content": ' ~ m.content | string ~ ', "call_id": "' }}
    {{- m.tool_call_id + '"}' }}
    {{- '[/TOOL_RESULTS]' }}
  {%- else %}
    {{- raise_exception('Nobody knows the role ' + m.role) }}
  {%- endif %}
{%- endfor %}
"""

# Tools as JSON lines in the system turn, results joined in one user turn, thoughts dropped from
# earlier answers, and a macro that contents go through.
QWEN = """
{%- macro shown(content) %}{{- content if content is string else '' }}{% endmacro %}
{%- set first = messages[0] %}
{%- if tools %}
  {{- '<|im_start|>system\n' }}
  {%- if first.role == 'system' %}{{- first.content + '\n\n' }}{% endif %}
  {{- '# Tools\n\n<tools>' }}
  {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{% endfor %}
  {{- '\n</tools>\n<|im_end|>\n' }}
{%- elif first.role == 'system' %}
  {{- '<|im_start|>system\n' + first.content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(asked=-1) %}
{%- for m in messages %}
  {%- if m.role == 'user' and not (m.content.startswith('<tool_response>')
      and m.content.endswith('</tool_response>')) %}{%- set ns.asked = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for m in messages %}
  {%- set content = shown(m.content) | trim %}
  {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
    {{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}
  {%- elif m.role == 'assistant' %}
    {%- set thought = '' %}
    {%- if '</think>' in content %}
      {%- set thought = content.split('</think>')[0].rstrip('\n') %}
      {%- set thought = thought.split('<think>')[-1].lstrip('\n') %}
      {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>assistant' }}
    {%- if thought and loop.index0 > ns.asked %}
      {{- '\n<think>\n' + thought.strip('\n') + '\n</think>\n' }}
    {%- endif %}
    {{- '\n' + content if content }}
    {%- for call in m.tool_calls or [] %}
      {%- set call = call.function if call.function else call %}
      {{- '\n<tool_call>\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
      {{- call.arguments if call.arguments is string else call.arguments | tojson }}
      {{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- elif m.role == 'tool' %}
    {{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' }}
    {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
    {{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""

# Tools written out by hand: types in capitals, what is required marked, keys in order.
GEMMA = """
{{- bos_token }}
{%- for tool in tools or [] %}
  {{- '<start_function>' + tool.function.name + '{' }}
  {%- for name, about in tool.function.parameters.properties | dictsort %}
    {{- ',' if not loop.first }}{{- name + ':' + about.type | upper }}
    {{- '!' if name in tool.function.parameters.required }}
  {%- endfor %}
  {{- '}<end_function>' }}
{%- endfor %}
{%- for m in messages %}
  {%- set role = 'model' if m.role == 'assistant' else m.role %}
  {{- '<start_of_turn>' + role + '\n' }}
  {{- (m.content | replace('  ', ' ') | trim) + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{% endif %}
"""

SPECIALS = (
    "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<start_function>", "<end_function>",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
)  # fmt: skip
