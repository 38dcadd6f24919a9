//! Leases of budgets in PostgreSQL: each process spends only what it has leased, so that several together do not exceed a budget.
//!
//! A key's row has what was spent. Budget - spent - leases of all processes is what can be leased; what a process spends moves from its
//! lease to the row in one transaction. The lease of a process that died ends by itself.

use postgres::{Client, Row, Transaction};

use crate::postgres_rows::{Failed, amount, usd};
use crate::{KeyId, Usd};

/// How long a lease lasts that its process does not renew: longer than a process may be stopped and live.
const LEASE: &str = "30 seconds";
/// Keeps the leases of this process for another while, and returns them.
pub(crate) fn renew(client: &mut Client, process: &str) -> Result<Vec<(KeyId, Usd)>, Failed> {
    let sql = format!(
        "UPDATE octet_leases SET until = now() + interval '{LEASE}' WHERE process = $1 AND until > now() AND amount > 0 \
         RETURNING key, amount"
    );
    let rows = client.query(sql.as_str(), &[&process])?;
    let lease = |row: &Row| Some((row.get::<_, &str>(0).parse().ok()?, usd(row.get(1))));
    Ok(rows.iter().filter_map(lease).collect())
}

/// Leases what is left of a budget, at most `wanted`. The key's row is locked, so two processes do not lease the same.
pub(crate) fn lease(
    client: &mut Client,
    process: &str,
    key: KeyId,
    window: i64,
    wanted: Usd,
) -> Result<Usd, Failed> {
    let key = key.to_string();
    let mut tx = client.transaction()?;
    // Whoever begins a period has spent nothing in it.
    let left = tx.query_opt(
        "SELECT budget - CASE WHEN window_start < $2 THEN 0 ELSE spent END FROM octet_keys \
         WHERE id = $1 AND budget IS NOT NULL FOR UPDATE",
        &[&key, &window],
    )?;
    let Some(left) = left.map(|row| row.get::<_, i64>(0)) else { return Ok(Usd::ZERO) };
    // A statement of its own: it sees what was committed before the lock.
    let sql = format!(
        "INSERT INTO octet_leases AS l SELECT $1::text, $2::text, least($3::bigint, $4::bigint - others.amount), now() + interval '{LEASE}' \
         FROM (SELECT coalesce(sum(amount), 0)::bigint AS amount FROM octet_leases WHERE key = $1 AND until > now()) others \
         WHERE others.amount < $4 ON CONFLICT (key, process) DO UPDATE SET \
         amount = excluded.amount + CASE WHEN l.until > now() THEN l.amount ELSE 0 END, until = excluded.until \
         RETURNING amount"
    );
    let before = tx.query_opt(
        "SELECT amount FROM octet_leases WHERE key = $1 AND process = $2 AND until > now()",
        &[&key, &process],
    )?;
    let before = before.map_or(0, |row| row.get::<_, i64>(0));
    let after = tx.query_opt(sql.as_str(), &[&key, &process, &amount(wanted), &left])?;
    let after = after.map_or(before, |row| row.get::<_, i64>(0));
    tx.commit()?;
    Ok(usd(after - before))
}

/// What was spent of leases, and what is given back.
pub(crate) fn shorten(
    tx: &mut Transaction<'_>,
    process: &str,
    leases: &[(KeyId, Usd)],
) -> Result<(), postgres::Error> {
    if leases.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = leases.iter().map(|(key, _)| key.to_string()).collect();
    let less: Vec<i64> = leases.iter().map(|(_, less)| amount(*less)).collect();
    tx.execute(
        "UPDATE octet_leases l SET amount = greatest(l.amount - v.less, 0) FROM unnest($2::text[], $3::bigint[]) AS v (key, less) \
         WHERE l.process = $1 AND l.key = v.key",
        &[&process, &keys, &less],
    )
    .map(drop)
}
