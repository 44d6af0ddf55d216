// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The parts of a critical path: as text, as bars in lanes, as rows of a table.

const LANES = 14; // processes with a lane of their own

// A part of a critical path as an object. Row: start, length, kind, name, phase, process, trajectory, turn, number of merged parts.
function part([from, length, kind, label, phase, process, trajectory, turn, parts]) {
  const segment = {
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
  const [, , words] = look.kind(segment.kind);
  segment.brief =
    segment.kind === "trajectory"
      ? "loop"
      : segment.kind === "tool" || segment.kind === "worker"
        ? segment.name
        : segment.kind.replace("_", " ");
  segment.title = segment.name ? `${words} ${segment.name}` : words;
  return segment;
}

function partWords(segment, stepLength) {
  const where = [
    segment.phase && `phase ${segment.phase}`,
    segment.trajectory && `trajectory ${segment.trajectory}`,
    segment.turn !== null && `turn ${segment.turn}`,
    segment.process && `on ${segment.process}`,
    segment.parts > 1 && `${segment.parts} short parts, the longest of them named`,
  ].filter(Boolean);
  return `${segment.title}: ${seconds(segment.length)}${stepLength ? `, ${percent(segment.length / stepLength)} of the step` : ""}. ${where.join(", ")}. From ${seconds(segment.from)} to ${seconds(segment.to)}.`;
}

function pathItem(segment, stepLength) {
  return {
    from: segment.from,
    to: segment.to,
    style: look.kind(segment.kind),
    text: segment.title,
    brief: segment.brief,
    words: partWords(segment, stepLength),
  };
}

function phaseItems(path, stepLength) {
  const items = [];
  for (const segment of path) {
    const key = segment.phase || "no phase";
    const last = items[items.length - 1];
    if (last?.key === key) last.to = segment.to;
    else items.push({ key, from: segment.from, to: segment.to, style: look.phase(key), text: key });
  }
  for (const item of items)
    item.words = `Phase ${item.key}: ${seconds(item.to - item.from)}, ${percent((item.to - item.from) / stepLength)} of the step.`;
  return items;
}

function pathLanes(path, stepLength) {
  const length = new Map();
  for (const segment of path) length.set(segment.process, (length.get(segment.process) ?? 0) + segment.length);
  const kept = new Set(
    [...length]
      .sort((a, b) => b[1] - a[1])
      .slice(0, LANES)
      .map(([key]) => key),
  );
  const lanes = new Map();
  for (const segment of path) {
    const key = kept.has(segment.process) ? segment.process || "(no process)" : "other processes";
    if (!lanes.has(key)) lanes.set(key, { label: key, group: 1, items: [] });
    lanes.get(key).items.push(pathItem(segment, stepLength));
  }
  return [...lanes.values()];
}

function pathTable(caption, path, stepLength) {
  return dataTable(
    caption,
    [
      { title: "from", number: true, value: (segment) => segment.from, text: (segment) => seconds(segment.from) },
      {
        title: "seconds",
        number: true,
        value: (segment) => segment.length,
        text: (segment) => segment.length.toFixed(4),
      },
      {
        title: "share",
        number: true,
        value: (segment) => segment.length,
        text: (segment) => percent(segment.length / stepLength),
      },
      { title: "what", text: (segment) => segment.title },
      { title: "phase", text: (segment) => segment.phase },
      { title: "trajectory", text: (segment) => segment.trajectory },
      {
        title: "turn",
        number: true,
        value: (segment) => segment.turn ?? -1,
        text: (segment) => (segment.turn === null ? "" : String(segment.turn)),
      },
      { title: "process", text: (segment) => segment.process },
      { title: "parts", number: true, value: (segment) => segment.parts, text: (segment) => String(segment.parts) },
    ],
    path,
  );
}
