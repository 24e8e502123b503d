"""What transformers makes of llama.cpp's chat templates, for the test chat::tests::peers of the worker.

    renderings.py TEMPLATES OUTPUT    a folder of templates (scripts/fetch-llama-cpp has them), and the file to write
"""

import copy
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of the next days",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
HI = {"role": "user", "content": "Hi"}


def calls(*arguments, content=""):
    """An assistant's message with a call for each of the arguments."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"id": f"call0000{i}", "type": "function", "function": {"name": "get_weather", "arguments": a}}
            for i, a in enumerate(arguments)
        ],
    }


def result(text, call=0):
    return {"role": "tool", "tool_call_id": f"call0000{call}", "content": text}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


# Messages, whether there are tools, whether the assistant is to speak.
CONVERSATIONS = {
    "plain": ([HI], False, True),
    "system": ([said("system", "S"), HI], False, True),
    "turns": ([HI, said("assistant", "A"), said("user", "R")], False, True),
    "tools": ([HI], True, True),
    "call": ([HI, calls({"city": "A", "days": 2})], True, False),
    "parallel": ([HI, calls({"city": "A"}, {"city": "B"}), result("x"), result("y", 1)], True, True),
    "answer": (
        [HI, calls({"city": "A", "days": 2}), result("x"), said("assistant", "fin"), said("user", "more")], True, True,
    ),
    "reasoning": ([HI, said("assistant", "A", reasoning_content="T"), said("user", "R")], False, True),
    "no arguments": ([HI, calls({}, content=None), result("x")], True, True),
    "nested": ([HI, calls({"a": {"b": [1, 2.5, None, True, 'é"\n']}, "c": 1e-7}), result("x")], True, True),
    "unicode": ([said("user", "日本 😀 é \u200b")], False, True),
    "developer": ([said("developer", "D"), HI], False, True),
    "parts": ([said("user", [{"type": "text", "text": "P"}, {"type": "text", "text": "Q"}])], False, True),
    "prefill": ([HI, said("assistant", "Sure")], False, False),
    "empty": ([said("user", "")], False, True),
}


def with_text(messages):
    """The same with arguments as JSON, as OpenAI has them."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return messages


def without_nulls(messages):
    """As transformers' chats are before they are rendered."""
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def prompts(source, messages, tools, generation):
    """What comes of it, each text once; nothing if the template refuses or fails."""
    texts = []
    for form in (messages, with_text(messages)):
        try:
            [text], _ = render_jinja_template(
                [without_nulls(form)], tools=tools, chat_template=source, add_generation_prompt=generation,
                bos_token="<s>", eos_token="</s>",
            )
        except Exception:  # A template's fault may be any of Python's.
            continue
        if text not in texts:
            texts.append(text)
    return texts


def main():
    folder, output = map(pathlib.Path, sys.argv[1:])
    templates = []
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode()
        made = {
            name: prompts(source, messages, [TOOL] if tools else None, generation)
            for name, (messages, tools, generation) in CONVERSATIONS.items()
        }
        templates.append({"name": path.stem, "source": source, "prompts": made})
    # Clients send arguments as text.
    conversations = {
        name: {"messages": with_text(messages), "tools": [TOOL] if tools else None, "add_generation_prompt": generation}
        for name, (messages, tools, generation) in CONVERSATIONS.items()
    }
    output.write_text(json.dumps({"conversations": conversations, "templates": templates}))
    print(f"{len(templates)} templates with {len(conversations)} conversations")


if __name__ == "__main__":
    main()
