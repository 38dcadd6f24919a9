// Icons as paths on a grid of 16, in the colour of the text: fonts of a system may lack a character.

const PATHS = {
  experts: "M2 2h3v3H2zM6.5 2h3v3h-3zM11 6.5h3v3h-3zM2 11h3v3H2zM6.5 6.5h3v3h-3zM11 11h3v3h-3z",
  performance: "M1.5 12.5l4-5 3 3 5-7",
  api: "M5.5 4L1.5 8l4 4M10.5 4l4 4-4 4",
  settings: "M2 4.5h6M11.5 4.5H14M2 11.5h2.5M8 11.5h6M8 2.8v3.4M4.6 9.8v3.4",
  menu: "M2 4h12M2 8h12M2 12h12",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  edit: "M2.5 13.5l1-3.5 7.5-7.5 2.5 2.5L6 12.5zM9.5 4l2.5 2.5",
  save: "M8 2v8.5M4.5 7L8 10.5 11.5 7M2.5 13.5h11",
  attach: "M13.2 7.4l-5.3 5.2a3.1 3.1 0 0 1-4.4-4.4l5.6-5.5a2 2 0 0 1 2.9 2.9l-5.5 5.4a1 1 0 0 1-1.4-1.4l4.9-4.9",
  previous: "M10 3L5 8l5 5",
  next: "M6 3l5 5-5 5",
  send: "M8 13.5v-11M3.5 7L8 2.5 12.5 7",
  stop: "M4.5 4.5h7v7h-7z",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  done: "M3 8.5l3.5 3.5L13 4.5",
  again: "M13.2 8A5.2 5.2 0 1 1 11.5 4.2M13.3 2v3h-3",
  continue: "M4.5 3l8 5-8 5z",
  delete: "M2.5 4.5h11M6.5 4.5v-2h3v2M4.3 4.5l.6 9h6.2l.6-9",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  new: "M8 3v10M3 8h10",
  down: "M8 2.5v11M3.5 9L8 13.5 12.5 9",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class={`icon icon-${name}`} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The mark of Octet: eight experts, three of which work. */
export function Mark() {
  const at = Array.from({ length: 8 }, (_, i) => [8 + 5.6 * Math.sin((i * Math.PI) / 4), 8 - 5.6 * Math.cos((i * Math.PI) / 4)] as const);
  return (
    <svg class="mark" viewBox="0 0 16 16" width="20" height="20" aria-hidden="true" focusable="false">
      {at.map(([x, y], i) => <circle key={i} cx={x} cy={y} r={1.55} opacity={i % 3 === 0 ? 1 : 0.35} />)}
    </svg>
  );
}
