// What a refusal of a prompt that is too long for the model's context says of its lengths: servers have no fields for them, so the
// numbers come from their sentences. Pure functions.

const REFUSED = /context (window|length|size|limit)|exceeds? the .*context|-token context|maximum (context|prompt)|too many (input )?tokens|(prompt|input) is too long/i;

/** The number in it is how many tokens fit. */
const LIMITS = [
  /exceeds (\d+) tokens/i,
  /(?:context|prompt) length is(?: only)? (\d+)/i,
  /context (?:length|window|size|limit) \(?(?:of )?(\d+)/i,
  /(\d+) maximum/i,
  /(?:maximum|limit)[^\d.]{0,40}?(\d+)/i,
];

export const isTooLong = (what: string) => REFUSED.test(what);

export interface Lengths {
  /** Tokens that fit. */
  limit?: number;
  /** Tokens of the prompt: known where a number is larger than the limit, or in Octet's own words. */
  tokens?: number;
  /** Tokens that the answer may have, where the prompt alone would fit. */
  answer?: number;
}

/** Reads the lengths that a server's sentence has. */
export function lengths(what: string): Lengths {
  const number = (of: RegExp) => Number(of.exec(what)?.[1] ?? NaN);
  const known = LIMITS.map(number).find(n => !Number.isNaN(n));
  if (known === undefined) return {};
  const cache = number(/KV cache holds (\d+)/);
  const limit = Number.isNaN(cache) ? known : Math.min(known, cache);
  const own = number(/prompt has (\d+) tokens/);
  const answer = number(/max_tokens is (\d+)/);
  if (own <= limit) return { limit, tokens: own, ...(Number.isNaN(answer) ? {} : { answer }) };
  const larger = [...what.matchAll(/\b\d{1,8}\b(?! bytes)/g)].map(m => Number(m[0])).filter(n => n > limit);
  const tokens = own > limit ? own : larger.length ? Math.max(...larger) : undefined;
  return { limit, ...(tokens === undefined ? {} : { tokens }) };
}
