// The values of an axis, as AUTOMATIC1111's web UI writes them: lists with commas, and in lists of numbers ranges:
// `1-5`, `10-30 (+5)`, `0.5-1 (+0.1)`, `9-1 (-2)`, and `1-3 [5]` for five numbers from 1 to 3.

const MOST_VALUES = 200;

const NUMBER = String.raw`[+-]?\d+(?:\.\d*)?|[+-]?\.\d+`;
const RANGE = new RegExp(String.raw`^(${NUMBER})\s*-\s*(${NUMBER})(?:\s*\(\s*(${NUMBER})\s*\)|\s*\[\s*(\d+)\s*\])?$`);
const ONE = new RegExp(`^(?:${NUMBER})$`);

// Parts between commas. Quotes keep a part with commas together; a doubled one within them is a quote.
export const parts = (text) => {
  const found = [];
  let part = "";
  let quoted = false;
  let wasQuoted = false;
  const push = () => {
    const value = wasQuoted ? part : part.trim();
    if (value || wasQuoted) found.push(value);
    part = "";
    wasQuoted = false;
  };
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (quoted && letter === '"' && text[at + 1] === '"') {
      part += letter;
      at++;
    } else if (quoted && letter === '"') quoted = false;
    else if (quoted) part += letter;
    else if (letter === '"' && !part.trim()) {
      quoted = wasQuoted = true;
      part = "";
    } else if (letter === ",") push();
    else if (!wasQuoted || letter.trim()) part += letter;
  }
  if (quoted) throw new Error('A quote (") has no end.');
  push();
  return found;
};

// Decimals as people write them: 0.1 + 0.2 is 0.3.
const tidy = (value) => Number(value.toFixed(6));

const range = (part, [, first, last, step, count], isWhole) => {
  const [from, to] = [Number(first), Number(last)];
  if (count !== undefined) {
    const many = Number(count);
    if (many < 1) throw new Error(`${part}: there is at least one value.`);
    if (many > MOST_VALUES) throw new Error(`${part} has ${many} values; ${MOST_VALUES} are the most.`);
    const at = (i) => (many === 1 ? from : from + ((to - from) * i) / (many - 1));
    return Array.from({ length: many }, (_, i) => (isWhole ? Math.trunc(tidy(at(i))) : tidy(at(i))));
  }
  const by = step === undefined ? Math.sign(to - from) || 1 : Number(step);
  if (by === 0) throw new Error(`${part}: a step of 0 never arrives.`);
  if (Math.sign(to - from) === -Math.sign(by)) throw new Error(`${part}: ${last} is not reached in steps of ${by}.`);
  const many = Math.floor((to - from) / by + 1e-9) + 1;
  if (many > MOST_VALUES) throw new Error(`${part} has ${many} values; ${MOST_VALUES} are the most.`);
  return Array.from({ length: many }, (_, i) => tidy(from + by * i));
};

// Numbers of a list with ranges; whole ones if `isWhole`.
export const numbers = (text, isWhole) => {
  const found = parts(text).flatMap((part) => {
    const match = RANGE.exec(part);
    const values = ONE.test(part) ? [Number(part)] : match ? range(part, match, isWhole) : null;
    if (!values) throw new Error(`${part} is neither a number nor a range such as 1-5, 10-30 (+5) or 1-3 [3].`);
    const odd = isWhole && values.find((value) => !Number.isSafeInteger(value));
    if (odd) throw new Error(`${part}: ${odd} is not a whole number.`);
    return values;
  });
  if (found.length > MOST_VALUES) throw new Error(`There are ${found.length} values; ${MOST_VALUES} are the most.`);
  return found;
};

// Names of a list that are among `choices`, in whatever case.
export const chosen = (text, choices) =>
  parts(text).map((part) => {
    const found = choices.find((choice) => choice.toLowerCase() === part.toLowerCase());
    if (found === undefined)
      throw new Error(`${part} is none of ${choices.slice(0, 8).join(", ")}${choices.length > 8 ? ", …" : ""}.`);
    return found;
  });

// Sizes such as 512x768, as pairs.
export const sizes = (text) =>
  parts(text).map((part) => {
    const match = /^(\d{1,5})\s*[x×*]\s*(\d{1,5})$/i.exec(part);
    if (!match) throw new Error(`${part} is not a size such as 512x768.`);
    return [Number(match[1]), Number(match[2])];
  });
