// What the page knows of the server: whether it is ready, its models, their settings and adapters.
import { adapters, health, models, props } from "./server.js";

const LOADING_MS = 1000;
const SILENT_MS = 3000;

export class Backend {
  models = [];
  adapters = [];
  // Of the model that is chosen; null before they are known.
  props = null;
  device = "";
  name = "";
  isReady = false;
  // What keeps it from being ready, in words.
  problem = "";
  isError = false;
  #timer = null;
  // The model that the open chat asks for, and the one that answers it.
  #wanted = null;
  #model = null;

  // `callbacks`: changed(), keyWanted(reason).
  constructor(callbacks) {
    this.callbacks = callbacks;
  }

  // Asks how the server is, again and again until it is ready.
  async watch() {
    clearTimeout(this.#timer);
    let wait = LOADING_MS;
    try {
      const state = await health();
      const device = state.device ?? {};
      this.device = device.fallback ? `${device.description}: ${device.fallback}` : (device.description ?? device.name ?? "");
      this.name = state.model ?? this.name;
      const isLoading = state.status === "loading";
      // Nothing is asked for before it is known which model answers.
      if (state.isOk) await this.refresh();
      this.isReady = state.isOk;
      this.isError = !state.isOk && !isLoading;
      const share = isLoading && Number.isFinite(state.progress) ? `: ${Math.floor(state.progress * 100)} %` : "";
      this.problem = state.isOk ? "" : isLoading ? `Loading the model${share}` : (state.message ?? "The server is not ready.");
    } catch {
      this.isReady = false;
      this.isError = true;
      this.problem = "The server does not answer.";
      wait = SILENT_MS;
    }
    this.callbacks.changed();
    if (!this.isReady) this.#timer = setTimeout(() => this.watch(), wait);
  }

  // Reads what there is behind the key.
  async refresh() {
    try {
      this.models = (await models()).filter(({ isChat }) => isChat);
      this.#model = this.chosen(this.#wanted);
      await this.#readModel();
    } catch (error) {
      if (error.status === 401) this.callbacks.keyWanted(error.message);
    }
    this.callbacks.changed();
  }

  // Reads what the model says of itself. One that is not loaded is not loaded for that.
  async #readModel() {
    const state = this.models.find(({ id }) => id === this.#model)?.state ?? "loaded";
    const unless = (otherwise) => (error) => {
      if (error.status === 401) throw error;
      // What a server does not have is not offered.
      return otherwise;
    };
    const isLoaded = state === "loaded";
    this.props = isLoaded ? await props(this.#model).catch(unless(null)) : null;
    this.adapters = isLoaded ? await adapters(this.#model).catch(unless([])) : [];
  }

  // A model may have been loaded, and others not be any more.
  async answered() {
    if (this.models.length > 1) await this.refresh();
  }

  // The model that answers a chat which asks for `wanted`; null where the server has but one.
  chosen(wanted) {
    if (this.models.length < 2) return null;
    return this.models.some(({ id }) => id === wanted) ? wanted : this.models[0].id;
  }

  // Another chat may want another model.
  async choose(wanted) {
    this.#wanted = wanted;
    const model = this.chosen(wanted);
    if (model === this.#model) return;
    this.#model = model;
    await this.#readModel().catch(() => {});
    this.callbacks.changed();
  }

  // Tokens that a chat may have, or null.
  get context() {
    const model = this.models.find(({ id }) => id === this.#model) ?? (this.models.length === 1 ? this.models[0] : null);
    return this.props?.context ?? model?.context ?? null;
  }

  get takes() {
    return this.props?.modalities ?? null;
  }
}
