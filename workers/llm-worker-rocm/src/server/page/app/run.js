// An answer in the making: asks the server and fills in a message as its parts come.
import { events, post, ServerError } from "./server.js";

// What is kept of an unfinished answer is at most so old.
const SAVE_EVERY_MS = 1000;

const figures = ({ prompt_n: prompt, cache_n: cached = 0, prompt_ms: promptMs, predicted_n: generated, predicted_per_second: perSecond }) => ({
  prompt: prompt + cached,
  cached,
  promptMs,
  generated,
  perSecond,
  total: prompt + cached + generated,
});

const addCall = (message, { index, id, function: named }) => {
  message.calls ??= [];
  const call = (message.calls[index ?? 0] ??= { id: "", name: "", arguments: "" });
  if (id) call.id = id;
  call.name += named?.name ?? "";
  call.arguments += named?.arguments ?? "";
};

export class Run {
  #controller = new AbortController();
  #chunks = 0;
  #first = 0;
  #saved = 0;

  // `callbacks`: `changed` when there is more to show, `save` when the message is worth keeping.
  constructor(message, callbacks) {
    this.message = message;
    this.callbacks = callbacks;
    // What goes on meanwhile, in words.
    this.status = "Waiting for the server";
    // Tokens before this answer and in it, as far as they are known.
    this.total = 0;
    // The status that the server refused with; 0 if it said nothing, null if it did not fail.
    this.failure = null;
  }

  stop() {
    this.#controller.abort();
  }

  // Runs to the end, which the message tells, too; never throws.
  async run(body) {
    const { message } = this;
    message.state = "running";
    delete message.error;
    this.callbacks.changed();
    try {
      const response = await post("v1/chat/completions", body, this.#controller.signal);
      await this.#read(response);
    } catch (error) {
      if (this.#controller.signal.aborted) message.state = "stopped";
      else {
        message.state = "failed";
        message.error = { message: error.message, param: error.param ?? null };
        this.failure = error.status ?? 0;
      }
    }
    if (message.state === "running") delete message.state;
    this.status = "";
    this.callbacks.changed();
    await this.callbacks.save();
  }

  async #read(response) {
    for await (const data of events(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message, { param: chunk.error.param ?? null });
      this.#take(chunk);
      if (performance.now() - this.#saved > SAVE_EVERY_MS) {
        this.#saved = performance.now();
        this.callbacks.save();
      }
    }
    throw new ServerError("The connection ended before the answer did.");
  }

  #take({ choices, timings, prompt_progress: progress, usage }) {
    const { message } = this;
    const [choice] = choices ?? [];
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice?.delta ?? {};
    if (content) message.content += content;
    if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
    for (const call of calls ?? []) addCall(message, call);
    if (content || reasoning || calls?.length) this.#count(timings);
    else if (progress) this.#progress(progress);
    if (timings) {
      message.figures = figures(timings);
      this.total = message.figures.total;
    }
    if (usage?.total_tokens) {
      this.total = usage.total_tokens;
      if (message.figures) message.figures.total = usage.total_tokens;
    }
    if (choice?.finish_reason === "length") message.state = "length";
    this.callbacks.changed();
  }

  #count(timings) {
    const now = performance.now();
    this.#first ||= now;
    this.#chunks += 1;
    const seconds = (now - this.#first) / 1000;
    const rate = timings?.predicted_per_second ?? (seconds > 0 ? (this.#chunks - 1) / seconds : 0);
    this.status = rate > 0 ? `${rate.toFixed(1)} tokens/s` : "Answering";
  }

  #progress({ total, cache = 0, processed }) {
    const share = total > cache ? Math.min(1, Math.max(0, (processed - cache) / (total - cache))) : 1;
    this.status = `Reading the prompt: ${Math.round(share * 100)} % of ${total} tokens`;
  }
}
