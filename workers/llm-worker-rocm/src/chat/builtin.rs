//! Templates for models that bring none, by the name of their format.

/// The names that `--chat-template` knows.
pub const BUILTIN_NAMES: [&str; 8] = [
    "chatml", "llama2", "llama3", "mistral", "gemma", "phi3", "zephyr", "vicuna",
];

/// What most fine-tunes use.
pub(super) const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const LLAMA2: &str = "{% set ns = namespace(system='') %}{{ bos_token }}{% for m in messages %}\
{% if m.role == 'system' %}{% set ns.system = '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' %}\
{% elif m.role == 'user' %}{{ '[INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}\
{% else %}{{ ' ' + m.content + ' ' + eos_token }}{{ bos_token if not loop.last }}{% endif %}{% endfor %}";

const LLAMA3: &str = "{{ bos_token }}{% for m in messages %}\
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content.strip() + '<|eot_id|>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

const MISTRAL: &str = "{% set ns = namespace(system='') %}{{ bos_token }}{% for m in messages %}\
{% if m.role == 'system' %}{% set ns.system = m.content + '\\n\\n' %}\
{% elif m.role == 'user' %}{{ '[INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}\
{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}";

const GEMMA: &str = "{% set ns = namespace(system='') %}{{ bos_token }}{% for m in messages %}\
{% if m.role == 'system' %}{% set ns.system = m.content.strip() + '\\n\\n' %}\
{% else %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + ns.system + m.content.strip() + '<end_of_turn>\\n' }}\
{% set ns.system = '' %}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

const PHI3: &str =
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

const ZEPHYR: &str = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

const VICUNA: &str = "{{ bos_token }}{% for m in messages %}\
{% if m.role == 'system' %}{{ m.content + '\\n\\n' }}\
{% elif m.role == 'user' %}{{ 'USER: ' + m.content + '\\n' }}\
{% else %}{{ 'ASSISTANT: ' + m.content + eos_token + '\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}";

/// The template of a format.
pub(super) fn source(name: &str) -> Option<&'static str> {
    Some(match name {
        "chatml" => CHATML,
        "llama2" => LLAMA2,
        "llama3" => LLAMA3,
        "mistral" => MISTRAL,
        "gemma" => GEMMA,
        "phi3" => PHI3,
        "zephyr" => ZEPHYR,
        "vicuna" => VICUNA,
        _ => return None,
    })
}
