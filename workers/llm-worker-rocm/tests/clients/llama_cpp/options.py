"""The options of llama.cpp's server, as its tests set them, in the words of ours."""

import os

import models

# What no option of ours does: a test that sets one fails with its name.
UNKNOWN = [
    "cors_origins",
    "mcp_servers_config",
    "mcp_servers_json",
    "model_tags",
    "models_dir",
    "models_preset",
    "no_mmproj",
    "reasoning_format",
    "server_tools",
    "server_tools_runtime",
    "spec_synth_len",
    "spec_synth_rates",
    "ui_mcp_proxy",
]
# These change nothing here: threads and layers are found, batches are always continuous, attention is always fused,
# the cache keeps what fits, and adapters of requests are batched.
#   n_threads n_gpu_layer n_ubatch server_continuous_batching fa cache_ram no_cache_idle_slots swa_full jinja


def arguments(server):
    """The arguments of our program."""
    for name in UNKNOWN:
        if getattr(server, name) not in (None, False):
            raise RuntimeError(f"no option of ours is {name}={getattr(server, name)!r}")
    given = ["serve", "--device", "cpu", "--host", server.server_host, "--port", server.own_port]
    given += ["--temperature", server.temperature, "--seed", server.seed]
    # No router looks after it.
    given += ["--shutdown-linger", 0]
    if server.model_file or server.model_hf_repo:
        model = server.model_file or models.of_repository(server.model_hf_repo, server.model_hf_file)
        # Its server answers whatever model a request names.
        given += ["--model", model, "--any-model"]
    else:
        given += ["--models-config", models.several()]

    def option(name, value):
        nonlocal given
        if value not in (None, False):
            given += [name] if value is True else [name, value]

    alias = (server.model_alias or "").split(",")
    option("--model-ref", min(alias) or None)
    option("--alias", ",".join(alias) if len(alias) > 1 else None)
    option("--models-max", server.models_max)
    option("--no-models-autoload", server.no_models_autoload)
    slots = server.n_slots or 4
    option("--parallel", slots)
    if server.n_ctx:
        # A slot of theirs has its part of the context; of one for all, each may have all.
        option("--context", server.n_ctx if server.kv_unified else server.n_ctx // slots)
    option("--step-tokens", server.n_batch)
    # Its cache knows equal beginnings to the token.
    option("--block-size", 1)
    option("--max-tokens", server.n_predict if (server.n_predict or -1) > 0 else None)
    option("--cache-type-k", server.ctk)
    option("--cache-type-v", server.ctv)
    option("--slot-save-path", server.slot_save_path)
    option("--no-slots", not server.server_slots)
    option("--no-page", bool(server.no_ui))
    option("--api-key", server.api_key)
    option("--media-path", server.media_path)
    option("--chat-template", server.chat_template_file or server.chat_template)
    option("--context-shift", bool(server.enable_ctx_shift))
    option("--sleep-after", server.sleep_idle_seconds)
    option("--pooling", server.pooling)
    option("--reasoning", server.reasoning)
    option("--verbose-answers", bool(server.debug))
    for number, adapter in enumerate(server.lora_files or []):
        option("--lora", f"adapter{number}={adapter}")
    if server.model_draft:
        option("--draft-model", server.model_draft)
        option("--draft-min", server.spec_draft_n_min)
        option("--draft-max", server.spec_draft_n_max)
        option("--draft-always", True)
        option("--draft-p-min", "0")
    return [str(argument) for argument in given]


def environment(server):
    """Its variables."""
    more = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "0"} if server.gcp_compat else {}
    return {**os.environ, **more}
