"""Small chat templates that show tools and calls as model families do, each with habits of its own."""

from __future__ import annotations

_END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}"
    "{% endif %}<tools>{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}{% endif %}"
    "{% for m in (messages[1:] if tools and messages[0].role == 'system' else messages) %}"
    "{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) }}"
    "{% if m.role == 'tool' %}{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% elif m.tool_calls %}{% if m.content %}{{ '\n' + m.content }}{% endif %}{% for call in m.tool_calls %}"
    "{{ '\n<tool_call>\n' }}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "{{ '\n</tool_call>' }}{% endfor %}"
    "{% else %}{{ '\n' + m.content }}{% endif %}" + _END
)
"""Wants arguments as objects, as Qwen's do."""

TEXT_ARGUMENTS = HERMES.replace(
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}',
    "{{ '{\"name\": \"' + call.function.name + '\", \"arguments\": ' + call.function.arguments + '}' }}",
)
"""Wants arguments as text."""

TAGS = (
    "{% for tool in tools or [] %}<function=example>{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}"
    "<tool_call>\n<function={{ call.function.name }}>\n{% for key, value in call.function.arguments.items() %}"
    "<parameter={{ key }}>\n{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}" + _END
)
"""Goes through the arguments, so it fails on any that are no object."""

MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% else %}{{ raise_exception('roles') }}{% endif %}{% endfor %}"
)
"""Has no system role, and wants ids of nine characters."""

LLAMA = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{% if tools and loop.first %}"
    'Answer with {"name": NAME, "parameters": {}}: {{ tools | tojson }}\n{% endif %}{% if m.tool_calls %}'
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

NO_TOOL_ROLE = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('roles') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}" + _END
)
"""Takes nothing but user and assistant."""

THINKING = HERMES.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""Opens a think block in the prompt."""

DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
    "{% elif m.tool_calls %}<｜Assistant｜>{{ m.content }}<｜tool▁calls▁begin｜>{% for call in m.tool_calls %}"
    "<｜tool▁call▁begin｜>{{ call.function.name + '<｜tool▁sep｜>' + call.function.arguments }}<｜tool▁call▁end｜>{% endfor %}"
    "<｜tool▁calls▁end｜><|im_end|>{% else %}<｜Assistant｜>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
"""Shows calls, wants their arguments as text, and has no place for tools."""

SHOWS_THOUGHTS = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if tools %}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""Shows thoughts since the last question only, as Qwen 3 does."""

HARMONY_ENDS = "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.thinking and loop.last %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
) + HARMONY_ENDS
"""Speaks in channels and shows only the newest thought, as gpt-oss' does."""

BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'system' %}"
    "[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]{% else %}{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}"
    "[/THINK]{% endif %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
"""Thinks in brackets, as Mistral's do."""
