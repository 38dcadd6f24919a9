// Icons as paths on a grid of 16, in the colour of the text: fonts of a system may lack a character.

const PATHS = {
  experts: "M2 2h3v3H2zM6.5 2h3v3h-3zM11 6.5h3v3h-3zM2 11h3v3H2zM6.5 6.5h3v3h-3zM11 11h3v3h-3z",
  performance: "M1.5 12.5l4-5 3 3 5-7",
  api: "M5.5 4L1.5 8l4 4M10.5 4l4 4-4 4",
  settings: "M2 4.5h6M11.5 4.5H14M2 11.5h2.5M8 11.5h6M8 2.8v3.4M4.6 9.8v3.4",
  menu: "M2 4h12M2 8h12M2 12h12",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  rename: "M2.5 13.5l1-3.5 7.5-7.5 2.5 2.5L6 12.5zM9.5 4l2.5 2.5",
  save: "M8 2v8.5M4.5 7L8 10.5 11.5 7M2.5 13.5h11",
  attach: "M8 2.5v11M2.5 8h11",
  previous: "M10 3L5 8l5 5",
  next: "M6 3l5 5-5 5",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
