// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The parts of a critical path: as words, as bars in lanes, as rows of a table.

const LANES = 14; // processes with a lane of their own

// A part of a critical path as an object. Row: start, length, kind, name, phase, process, trajectory, turn, how many parts.
function part([from, length, kind, label, phase, process, trajectory, turn, parts]) {
  const made = {
    from: micros(from),
    to: micros(from + length),
    length: micros(length),
    kind: name(kind),
    name: name(label),
    phase: name(phase),
    process: name(process),
    trajectory: name(trajectory),
    turn: turn ?? null,
    parts: parts ?? 1,
  };
  const [, , words] = look.kind(made.kind);
  made.brief =
    made.kind === "trajectory"
      ? "loop"
      : made.kind === "tool" || made.kind === "worker"
        ? made.name
        : made.kind.replace("_", " ");
  made.title = made.name ? `${words} ${made.name}` : words;
  return made;
}

function partWords(each, whole) {
  const where = [
    each.phase && `phase ${each.phase}`,
    each.trajectory && `trajectory ${each.trajectory}`,
    each.turn !== null && `turn ${each.turn}`,
    each.process && `on ${each.process}`,
    each.parts > 1 && `${each.parts} short parts, the longest of them named`,
  ].filter(Boolean);
  return `${each.title}: ${seconds(each.length)}${whole ? `, ${percent(each.length / whole)} of the step` : ""}. ${where.join(", ")}. From ${seconds(each.from)} to ${seconds(each.to)}.`;
}

function pathItem(each, whole) {
  return {
    from: each.from,
    to: each.to,
    style: look.kind(each.kind),
    text: each.title,
    brief: each.brief,
    words: partWords(each, whole),
  };
}

function phaseItems(path, whole) {
  const items = [];
  for (const each of path) {
    const key = each.phase || "no phase";
    const last = items[items.length - 1];
    if (last?.key === key) last.to = each.to;
    else items.push({ key, from: each.from, to: each.to, style: look.phase(key), text: key });
  }
  for (const each of items)
    each.words = `Phase ${each.key}: ${seconds(each.to - each.from)}, ${percent((each.to - each.from) / whole)} of the step.`;
  return items;
}

function pathLanes(path, whole) {
  const length = new Map();
  for (const each of path) length.set(each.process, (length.get(each.process) ?? 0) + each.length);
  const kept = new Set(
    [...length]
      .sort((one, other) => other[1] - one[1])
      .slice(0, LANES)
      .map(([key]) => key),
  );
  const lanes = new Map();
  for (const each of path) {
    const key = kept.has(each.process) ? each.process || "(no process)" : "other processes";
    if (!lanes.has(key)) lanes.set(key, { label: key, group: 1, items: [] });
    lanes.get(key).items.push(pathItem(each, whole));
  }
  return [...lanes.values()];
}

function pathTable(caption, path, whole) {
  return dataTable(
    caption,
    [
      { title: "from", number: true, value: (each) => each.from, text: (each) => seconds(each.from) },
      { title: "seconds", number: true, value: (each) => each.length, text: (each) => each.length.toFixed(4) },
      { title: "share", number: true, value: (each) => each.length, text: (each) => percent(each.length / whole) },
      { title: "what", text: (each) => each.title },
      { title: "phase", text: (each) => each.phase },
      { title: "trajectory", text: (each) => each.trajectory },
      {
        title: "turn",
        number: true,
        value: (each) => each.turn ?? -1,
        text: (each) => (each.turn === null ? "" : String(each.turn)),
      },
      { title: "process", text: (each) => each.process },
      { title: "parts", number: true, value: (each) => each.parts, text: (each) => String(each.parts) },
    ],
    path,
  );
}
