// What a picture was made with: shown, and put into the form.
import { copyText, make, present } from "../dom.js";
import { announce, notice } from "../notices.js";
import { sendMenu } from "../results.js";
import { makeSlot, takesPasted } from "../slot.js";
import { toBase64 } from "../pictures.js";

// What the server reads in a picture, or in a text of parameters.
const recall = async ({ blob, parameters }, { post }) => post("v1/recall", blob ? { picture: await toBase64(blob) } : { parameters });

// Puts what a picture says into the form.
const use = (recalled, { request, openForm }) => {
  request.replace(recalled.fields);
  openForm();
  const { left_out: left } = recalled;
  if (left.length > 0) notice(`Not taken over: ${left.join("; ")}`);
};

export const mount = (element, context) => {
  const { backend, request } = context;
  const told = make("div", { class: "told" });
  const show = async (blob) => {
    if (!blob) return told.replaceChildren();
    try {
      const recalled = await recall({ blob }, backend);
      const rows = recalled.settings.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)));
      const { fields, parameters, left_out: left } = recalled;
      const buttons = [
        make("button", { type: "button", class: "primary use", onclick: () => use(recalled, context) }, "Use all"),
        make("button", { type: "button", onclick: () => onlyPrompts(fields) }, "Use the prompts"),
        fields.seed !== undefined && make("button", { type: "button", onclick: () => { request.update({ seed: fields.seed }); context.openForm(); } }, "Use the seed"),
        parameters && make("button", { type: "button", onclick: () => copyText(parameters).then(() => announce("Copied")) }, "Copy"),
        sendMenu({ blob }, context),
      ];
      told.replaceChildren(
        ...present([
          make("div", { class: "row" }, present(buttons)),
          make("h2", {}, "Prompt"),
          make("p", { class: "text" }, fields.prompt || "none"),
          fields.negative_prompt && [make("h2", {}, "Negative prompt"), make("p", { class: "text" }, fields.negative_prompt)],
          rows.length > 0 && make("table", {}, make("tbody", {}, rows)),
          left.length > 0 && make("p", { class: "hint" }, `Not taken over: ${left.join("; ")}`),
        ]),
      );
    } catch (error) {
      told.replaceChildren(make("p", { class: "error", role: "alert" }, error.message), make("div", { class: "row" }, sendMenu({ blob }, context)));
    }
    return undefined;
  };
  const onlyPrompts = ({ prompt, negative_prompt: negative }) => {
    request.update({ prompt, negative_prompt: negative });
    context.openForm();
  };
  const slot = makeSlot("Picture", show);
  element.classList.add("pane", "create");
  element.append(make("div", { class: "tool" }, slot.node), make("div", { class: "stage" }, told));
  takesPasted(slot.node, slot.set);
  context.addPlace("info", async (blob) => {
    context.open("info");
    await slot.set(blob);
  });
  context.addPlace("text", async (blob, { parameters }) => use(await recall({ blob: parameters ? null : blob, parameters }, backend), context));
};
