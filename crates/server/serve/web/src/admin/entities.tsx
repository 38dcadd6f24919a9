// Keys, users and teams: listed, made, changed, blocked, deleted.
import { signal, type Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { copy } from "../clipboard.ts";
import { number } from "../language.ts";
import { ask, type Limited, type Team, type User, type VirtualKey } from "./api.ts";
import { Form, LIMITS, values, type Field } from "./form.tsx";
import { t, time } from "./i18n.ts";
import { Meter } from "./meter.tsx";
import { attempt, change, keys, load, said, teams, users } from "./state.ts";

const keyName = (k: VirtualKey) => k.key_alias ?? k.token;
export const nameOfKey = (token: string) => keys.value.find(k => k.token === token)?.key_alias ?? token;
const userName = (u: User) => u.user_alias ?? u.user_email ?? u.user_id;
export function nameOfUser(id: string): string {
  const user = users.value.find(u => u.user_id === id);
  return user ? userName(user) : id;
}
const teamName = (team: Team) => team.team_alias ?? team.team_id;
export function nameOfTeam(id: string): string {
  const team = teams.value.find(one => one.team_id === id);
  return team ? teamName(team) : id;
}

/** What differs between keys, users and teams. */
interface Kind<T extends Limited> {
  id: "key" | "user" | "team";
  list: Signal<T[]>;
  idOf: (one: T) => string;
  name: (one: T) => string;
  columns: { title: () => string; cell: (one: T) => ComponentChildren }[];
  fields: () => Field[];
  /** How a request names one. */
  named: (one: T) => Record<string, unknown>;
  /** How a request for several names one. */
  several: (one: T) => Record<string, unknown>;
  make: string;
  made?: (answer: Record<string, unknown>) => void;
}

/** What a dialog is about. */
type Open<T> = { what: "new" } | { what: "edit" | "delete"; one: T };

function limitsOf(one: Limited): string {
  const parts = [
    one.rpm_limit !== null && `${number(one.rpm_limit)} ${t("rpm")}`,
    one.tpm_limit !== null && `${number(one.tpm_limit)} ${t("tpm")}`,
    one.max_parallel_requests !== null && t("parallel", { n: number(one.max_parallel_requests) }),
  ];
  return parts.filter(Boolean).join(", ") || "–";
}

function Budget({ one, name }: { one: Limited; name: string }) {
  return (
    <>
      <Meter used={one.spend} limit={one.max_budget} label={t("budgetOf", { name })} />
      {one.max_budget !== null && <small>{one.budget_reset_at ? t("resets", { time: time(one.budget_reset_at) }) : t("never")}</small>}
    </>
  );
}

/** A dialog that is open as long as it is there. Escape closes it. */
function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => before instanceof HTMLElement && before.focus();
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby="dialog-title" onClose={close}>
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

function Entities<T extends Limited>({ kind, open, extra }: { kind: Kind<T>; open: Signal<Open<T> | null>; extra?: (one: T) => ComponentChildren }) {
  const o = open.value;
  const close = () => (open.value = null);
  const list = kind.list.value;
  const block = async (one: T) => {
    const verb = one.blocked ? "unblock" : "block";
    const body = kind.id === "user" ? kind.several(one) : kind.named(one);
    if (await change(`${kind.id}/${verb}`, body)) said.value = t(`said.${verb}ed`, { name: kind.name(one) });
  };
  const remove = async (one: T) => {
    if (await change(`${kind.id}/delete`, kind.several(one))) {
      said.value = t("said.deleted", { name: kind.name(one) });
      close();
    }
  };
  const save = async (form: HTMLFormElement) => {
    const body = values(form, kind.fields(), o?.what === "new");
    const worked = await attempt(async () => {
      if (o?.what === "edit") await ask(`${kind.id}/update`, { ...body, ...kind.named(o.one) });
      else {
        const answer = await ask<Record<string, unknown>>(kind.make, kind.id === "user" ? { ...body, auto_create_key: false } : body);
        kind.made?.(answer);
      }
      await load();
    });
    if (worked) close();
  };
  const current = o?.what === "edit" ? list.find(one => kind.idOf(one) === kind.idOf(o.one)) ?? o.one : null;
  return (
    <>
      <p><button type="button" class="main" onClick={() => (open.value = { what: "new" })}>{t(`${kind.id}.new`)}</button></p>
      <div class="wide" tabIndex={0} role="region" aria-label={t(`view.${kind.id}s`)}>
        <table>
          <thead>
            <tr>
              {kind.columns.map(c => <th key={c.title()} scope="col">{c.title()}</th>)}
              <th scope="col">{t("models")}</th><th scope="col">{t("spent")}</th><th scope="col">{t("limits")}</th><th scope="col">{t("state")}</th><th scope="col"><span class="hidden">{t("actions")}</span></th>
            </tr>
          </thead>
          <tbody>
            {list.map(one => (
              <tr key={kind.idOf(one)}>
                {kind.columns.map((c, i) => (i === 0 ? <th key={i} scope="row">{c.cell(one)}</th> : <td key={i}>{c.cell(one)}</td>))}
                <td>{one.models.join(", ") || t("all")}</td>
                <td><Budget one={one} name={kind.name(one)} /></td>
                <td>{limitsOf(one)}</td>
                <td><span class={`state ${one.blocked ? "bad" : "good"}`}>{one.blocked ? t("blocked") : t("inForce")}</span></td>
                <td class="acts">
                  <button type="button" onClick={() => (open.value = { what: "edit", one })} aria-label={t("editOf", { name: kind.name(one) })}>{t("edit")}</button>
                  <button type="button" onClick={() => void block(one)} aria-label={t(one.blocked ? "unblockOf" : "blockOf", { name: kind.name(one) })}>{t(one.blocked ? "unblock" : "block")}</button>
                  <button type="button" onClick={() => (open.value = { what: "delete", one })} aria-label={t("deleteOf", { name: kind.name(one) })}>{t("delete")}</button>
                </td>
              </tr>
            ))}
            {!list.length && <tr><td colSpan={kind.columns.length + 5}>{t(`${kind.id}.none`)}</td></tr>}
          </tbody>
        </table>
      </div>
      {o && o.what !== "delete" && (
        <Dialog key={o.what} title={o.what === "new" ? t(`${kind.id}.new`) : t("editOf", { name: kind.name(o.one) })} close={close}>
          <Form fields={kind.fields()} one={current as Record<string, unknown> | null} save={save} cancel={close} />
          {current && extra?.(current)}
        </Dialog>
      )}
      {o?.what === "delete" && (
        <Dialog title={t("deleteOf", { name: kind.name(o.one) })} close={close}>
          <p>{t(`${kind.id}.delete`)}</p>
          <div class="row">
            <button type="button" onClick={close} autofocus>{t("cancel")}</button>
            <button type="button" class="danger" onClick={() => void remove(o.one)}>{t("delete")}</button>
          </div>
        </Dialog>
      )}
    </>
  );
}

/** A key that was just made; it is shown this once. */
const secret = signal<{ name: string; key: string } | null>(null);
const openKey = signal<Open<VirtualKey> | null>(null);
const openUser = signal<Open<User> | null>(null);
const openTeam = signal<Open<Team> | null>(null);

const KEY: Kind<VirtualKey> = {
  id: "key",
  list: keys,
  idOf: k => k.token,
  name: keyName,
  columns: [
    { title: () => t("name"), cell: keyName },
    { title: () => t("user"), cell: k => (k.user_id ? nameOfUser(k.user_id) : "–") },
    { title: () => t("team"), cell: k => (k.team_id ? nameOfTeam(k.team_id) : "–") },
    { title: () => t("expires"), cell: k => (k.expires ? time(k.expires) : t("never")) },
  ],
  fields: () => [
    { name: "key_alias", label: t("name") },
    { name: "user_id", label: t("user"), choices: users.value.map(u => ({ id: u.user_id, name: userName(u) })), free: true },
    { name: "team_id", label: t("team"), choices: teams.value.map(one => ({ id: one.team_id, name: teamName(one) })) },
    ...LIMITS(),
    { name: "duration", label: t("duration"), hint: "90d", onlyNew: true },
  ],
  named: k => ({ key: k.token }),
  several: k => ({ keys: [k.token] }),
  make: "key/generate",
  made: answer => (secret.value = { name: String(answer.key_alias ?? answer.token), key: String(answer.key) }),
};

const USER: Kind<User> = {
  id: "user",
  list: users,
  idOf: u => u.user_id,
  name: userName,
  columns: [
    { title: () => t("name"), cell: userName },
    { title: () => t("id"), cell: u => <code>{u.user_id}</code> },
    { title: () => t("teams"), cell: u => u.teams.map(nameOfTeam).join(", ") || "–" },
    { title: () => t("keys"), cell: u => number(keys.value.filter(k => k.user_id === u.user_id).length) },
  ],
  fields: () => [
    { name: "user_id", label: t("id"), hint: t("id.hint"), onlyNew: true },
    { name: "user_alias", label: t("name") },
    { name: "user_email", label: t("email") },
    ...LIMITS(),
  ],
  named: u => ({ user_id: u.user_id }),
  several: u => ({ user_ids: [u.user_id] }),
  make: "user/new",
};

const TEAM: Kind<Team> = {
  id: "team",
  list: teams,
  idOf: team => team.team_id,
  name: teamName,
  columns: [
    { title: () => t("name"), cell: teamName },
    { title: () => t("id"), cell: team => <code>{team.team_id}</code> },
    { title: () => t("members"), cell: team => number(team.members_with_roles.length) },
    { title: () => t("keys"), cell: team => number(keys.value.filter(k => k.team_id === team.team_id).length) },
  ],
  fields: () => [
    { name: "team_id", label: t("id"), hint: t("id.hint"), onlyNew: true },
    { name: "team_alias", label: t("name") },
    ...LIMITS(),
  ],
  named: team => ({ team_id: team.team_id }),
  several: team => ({ team_ids: [team.team_id] }),
  make: "team/new",
};

/** The browser did not copy the key. */
const failed = signal(false);

function Secret() {
  const s = secret.value;
  if (!s) return null;
  const close = () => {
    secret.value = null;
    failed.value = false;
  };
  const copyKey = async () => {
    const copied = await copy(s.key);
    if (copied) said.value = t("copied");
    failed.value = !copied;
  };
  return (
    <Dialog title={t("secret.title", { name: s.name })} close={close}>
      <p>{t("secret.once")}</p>
      <p><code class="secret" tabIndex={0}>{s.key}</code></p>
      {failed.value && <p class="error" role="alert">{t("secret.byHand")}</p>}
      <div class="row">
        <button type="button" onClick={() => void copyKey()}>{t("copy")}</button>
        <button type="button" class="main" onClick={close}>{t("close")}</button>
      </div>
    </Dialog>
  );
}

function Members({ team }: { team: Team }) {
  const add = async (e: SubmitEvent) => {
    e.preventDefault();
    const form = e.currentTarget as HTMLFormElement;
    const user = (form.elements.namedItem("member") as HTMLInputElement).value.trim();
    const role = (form.elements.namedItem("role") as HTMLSelectElement).value;
    if (await change("team/member_add", { team_id: team.team_id, member: { user_id: user, role } })) form.reset();
  };
  const remove = (user: string) => void change("team/member_delete", { team_id: team.team_id, user_id: user });
  return (
    <section class="members" aria-label={t("members")}>
      <h3>{t("members")}</h3>
      <ul>
        {team.members_with_roles.map(m => (
          <li key={m.user_id}>
            <span>{nameOfUser(m.user_id)} <small>{t(m.role === "admin" ? "role.admin" : "role.user")}</small></span>
            <button type="button" onClick={() => remove(m.user_id)} aria-label={t("removeOf", { name: nameOfUser(m.user_id) })}>{t("remove")}</button>
          </li>
        ))}
        {!team.members_with_roles.length && <li class="dim">{t("members.none")}</li>}
      </ul>
      <form class="row" onSubmit={e => void add(e)}>
        <label class="grow">{t("user")}<input name="member" list="all-users" required maxLength={200} /></label>
        <datalist id="all-users">{users.value.map(u => <option key={u.user_id} value={u.user_id}>{userName(u)}</option>)}</datalist>
        <label>{t("role")}<select name="role"><option value="user">{t("role.user")}</option><option value="admin">{t("role.admin")}</option></select></label>
        <button>{t("add")}</button>
      </form>
    </section>
  );
}

export const Keys = () => (
  <>
    <Entities kind={KEY} open={openKey} />
    <Secret />
  </>
);
export const Users = () => <Entities kind={USER} open={openUser} />;
export const Teams = () => <Entities kind={TEAM} open={openTeam} extra={team => <Members team={team} />} />;
