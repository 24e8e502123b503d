// Mouse, pen and fingers on the canvas: strokes, moving, pinching, and sides that are dragged. Keys draw, too.

const PEN_LEAST = 0.15;

// `tools`: `layer()` gives the layer that is drawn on or null to move the picture, `pick(x, y)` takes a colour,
// `drag(side, pixels)` sets a side, `dragged()` is called after it, `sides()` gives them.
export const listen = (canvas, layers, view, brush, tools) => {
  const pointers = new Map();
  // What the pointers do: { kind: "stroke", name, last } | { kind: "move" } | { kind: "pinch" } | { kind: "side", side, … }.
  let action = null;
  let isSpace = false;

  const place = (event) => {
    const bounds = canvas.getBoundingClientRect();
    return { x: event.clientX - bounds.left, y: event.clientY - bounds.top };
  };
  const point = (event) => {
    const at = place(event);
    const pressure = event.pointerType === "pen" && event.pressure > 0 ? Math.max(PEN_LEAST, event.pressure) : 1;
    return { ...view.toPicture(at.x, at.y), size: brush.size * pressure };
  };

  const begin = (event) => {
    const at = place(event);
    if (pointers.size === 2) {
      // The first finger meant to pinch, not to draw.
      if (action?.kind === "stroke") layers.revert(action.name);
      return { kind: "pinch" };
    }
    if (event.button === 1 || isSpace) return { kind: "move" };
    const side = view.handleAt(at.x, at.y);
    if (side) return { kind: "side", side, from: at, pixels: tools.sides()[side] };
    const name = tools.layer();
    if (name === null) return { kind: "move" };
    if (event.altKey && name === "sketch") {
      const { x, y } = view.toPicture(at.x, at.y);
      tools.pick(x, y);
      return null;
    }
    const first = point(event);
    brush.stroke(layers, name, first, first);
    return { kind: "stroke", name, last: first };
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (!layers.base || event.button > 1) return;
    event.preventDefault();
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    action = begin(event);
  });

  canvas.addEventListener("pointermove", (event) => {
    const at = place(event);
    const before = pointers.get(event.pointerId);
    view.cursor = tools.layer() === null ? null : view.toPicture(at.x, at.y);
    view.draw();
    if (!before) return;
    if (action?.kind === "stroke") {
      const events = event.getCoalescedEvents?.() ?? [];
      for (const each of events.length > 0 ? events : [event]) {
        const next = point(each);
        brush.stroke(layers, action.name, action.last, next);
        action.last = next;
      }
    } else if (action?.kind === "move") view.move(at.x - before.x, at.y - before.y);
    else if (action?.kind === "pinch") pinch(event.pointerId, before, at);
    else if (action?.kind === "side") dragSide(at);
    pointers.set(event.pointerId, at);
  });

  const pinch = (id, before, at) => {
    const [other] = [...pointers].filter(([each]) => each !== id).map(([, where]) => where);
    if (!other) return;
    const length = (one) => Math.max(1, Math.hypot(one.x - other.x, one.y - other.y));
    view.move((at.x - before.x) / 2, (at.y - before.y) / 2);
    view.zoom(length(at) / length(before), (at.x + other.x) / 2, (at.y + other.y) / 2);
  };

  const dragSide = (at) => {
    const { side, from, pixels } = action;
    const out = { left: from.x - at.x, right: at.x - from.x, top: from.y - at.y, bottom: at.y - from.y }[side];
    tools.drag(side, Math.max(0, Math.round(pixels + out / view.scale)));
    view.draw();
  };

  const end = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    if (action?.kind === "stroke") layers.end(action.name);
    if (action?.kind === "side") tools.dragged();
    // The finger that is left of two draws nothing.
    action = null;
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => {
    view.cursor = null;
    view.draw();
  });

  canvas.addEventListener("wheel", (event) => {
    // Without Ctrl the page scrolls.
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = place(event);
    view.zoom(Math.exp(-event.deltaY / 300), at.x, at.y);
  }, { passive: false });

  // Arrows move the brush, Enter puts it down.
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (!layers.base || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " ") isSpace = true;
    const move = MOVES[event.key];
    if (move) {
      const step = event.shiftKey ? 1 : Math.max(1, brush.size / 4);
      const from = view.cursor ?? { x: layers.width / 2, y: layers.height / 2 };
      view.cursor = { x: from.x + move[0] * step, y: from.y + move[1] * step };
      view.draw();
    } else if (event.key === "Enter" && view.cursor && tools.layer() !== null) {
      const at = { ...view.cursor, size: brush.size };
      brush.stroke(layers, tools.layer(), at, at);
      layers.end(tools.layer());
    } else if (event.key !== " ") return;
    event.preventDefault();
  });
  canvas.addEventListener("keyup", (event) => {
    if (event.key === " ") isSpace = false;
  });
};
