//! The caching policy: the value of a snapshot, and the positions of a prompt that get one. Pure functions of the tree.
//!
//! Values follow GreedyDual-Size-Frequency (Cherkasova 1998): a snapshot's value is the clock at its last use plus the tokens that it
//! saves, and the clock advances to the value of each evicted one. So valuable snapshots outlive others, but none that is never used
//! again stays forever.

use super::tree::{NodeId, Snapshot, SnapshotId, Tree, common};

/// Minimum number of tokens that a copied or read state must save.
pub const TOKENS_MIN: usize = 16;
/// Maximum of saved tokens that counts: otherwise one long finished conversation would stay for days.
const TOKENS_MAX: usize = 4096;
/// Share of its value that a snapshot keeps when the conversation continued past it and never branched there.
const PASSED: f64 = 0.3;
/// Maximum number of hits that increase a snapshot's value.
const HITS_MAX: u32 = 4;
/// Maximum number of positions in a prompt at which processing stops for a snapshot.
const CHECKPOINTS_MAX: usize = 10;
/// Number of last checkpoints that are taken whatever their distance. Clients drop reasoning and rewrite calls some turns later; the
/// prompt then diverges at the message before that answer.
const RECENT: usize = 5;
/// Distance between checkpoints in the middle of a prompt.
const SPACING: usize = 512;

impl Tree {
    /// Tokens between a snapshot and its nearest ancestor: the recomputation that it saves.
    pub fn saves(&self, id: SnapshotId) -> usize {
        let s = &self.snapshots[&id];
        let before = |parent: NodeId, tokens: &[u32]| {
            let filed = self.nodes[parent].snapshots.iter().filter(|x| **x != id).map(|x| &self.snapshots[x]);
            filed.filter(|x| x.position < s.position && tokens.starts_with(&x.tail)).map(|x| x.position).max()
        };
        let (mut node, mut tokens) = (s.parent, &s.tail[..]);
        loop {
            if let Some(position) = before(node, tokens) {
                return s.position - position;
            }
            let n = &self.nodes[node];
            let Some(parent) = n.parent else { return s.position };
            (node, tokens) = (parent, &n.tokens);
        }
    }

    /// Number of directions in which sequences continued from a snapshot, as far as existing snapshots show.
    fn branches(&self, id: SnapshotId) -> usize {
        let s = &self.snapshots[&id];
        let parent = &self.nodes[s.parent];
        let deeper = |c: NodeId| {
            let child = &self.nodes[c];
            let in_child =
                || {
                    parent.snapshots.iter().map(|x| &self.snapshots[x]).any(|x| {
                        x.tail.len() > s.tail.len() && common(&x.tail, &child.tokens) == x.tail.len()
                    })
                };
            child.snapshots.iter().any(|x| *x != id)
                || child.children.iter().any(|g| self.nodes[g.1].need > 0)
                || in_child()
        };
        parent.children.iter().filter(|c| self.nodes[c.1].tokens.starts_with(&s.tail) && deeper(c.1)).count()
    }

    /// The value of a snapshot, as described above.
    pub fn value(&self, id: SnapshotId) -> f64 {
        let s = &self.snapshots[&id];
        let saves = self.saves(id).min(TOKENS_MAX) as f64;
        let weight = if self.branches(id) == 1 { PASSED } else { 1.0 };
        s.base + saves * weight * f64::from(1 + s.hits.min(HITS_MAX))
    }

    /// The least valuable of the snapshots that satisfy `choose`.
    pub fn least_valuable(&self, choose: impl Fn(&Snapshot) -> bool) -> Option<(SnapshotId, f64)> {
        let all = self.snapshots.iter().filter(|(_, s)| choose(s));
        all.map(|(&id, s)| (self.value(id), s.used, id))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
            .map(|(value, _, id)| (id, value))
    }
}

/// Positions at which processing a prompt stops for a snapshot, descending. `resumed` tokens are cached, `matched` tokens are known
/// from earlier prompts, `wanted` are the request's checkpoints (ascending).
///
/// Chosen are always: the last checkpoint (the next prompt continues there), the one before it (for an edited last message), the first
/// two (other conversations share the tools and the instructions), and the position where this prompt diverges from all earlier ones
/// (a third prompt may, too; for a fully known prompt, just before its last token, which is always computed). Also a few more at the
/// end, and some in between.
pub fn checkpoints(resumed: usize, matched: usize, wanted: &[usize], prompt: usize) -> Vec<usize> {
    let fits = |c: &usize| *c >= resumed + TOKENS_MIN && *c < prompt;
    let latest = || wanted.iter().rev().copied().filter(fits);
    let first = wanted.iter().copied().filter(|&c| c >= TOKENS_MIN).take(2).filter(fits);
    let mut out: Vec<usize> = latest().take(1).collect();
    let add = |out: &mut Vec<usize>, c: usize, apart: usize| {
        if out.len() < CHECKPOINTS_MAX && out.iter().all(|&o| o.abs_diff(c) >= apart) {
            out.push(c);
        }
    };
    first.for_each(|c| add(&mut out, c, TOKENS_MIN));
    // The one before the last, unless one of the first is just before it: the text between the tools and the end of the instructions
    // may change with each request.
    out.extend(latest().nth(1).filter(|&c| !out.iter().any(|&o| o <= c && c - o < TOKENS_MIN)));
    let again = matched >= prompt;
    let matched = matched.min(prompt.saturating_sub(1));
    let parts = matched >= resumed + if again { TOKENS_MIN } else { SPACING / 4 };
    if parts && !out.iter().any(|&c| c <= matched && matched - c < TOKENS_MIN) {
        out.push(matched);
    }
    latest().take(RECENT).for_each(|c| add(&mut out, c, TOKENS_MIN));
    latest().for_each(|c| add(&mut out, c, SPACING));
    out.sort_unstable_by(|a, b| b.cmp(a));
    out
}

#[cfg(test)]
mod tests {
    use super::checkpoints;

    #[test]
    fn positions_are_the_last_the_first_and_branches() {
        assert_eq!(checkpoints(0, 0, &[100, 130, 160, 900], 1000), [900, 160, 130, 100]);
        // the end of the tools, and of the instructions
        assert_eq!(checkpoints(0, 0, &[700, 800, 2000], 2010), [2000, 800, 700]);
        assert_eq!(checkpoints(700, 0, &[700, 800, 2000], 2010), [2000, 800]);
        // ... of which the tools' stays where the instructions are short
        assert_eq!(checkpoints(0, 0, &[249, 258, 270], 280), [270, 249]);
        // nothing is gained so near to the beginning, or to each other
        assert_eq!(checkpoints(0, 0, &[3, 700, 710, 1500, 2000], 2010), [2000, 1500, 700]);
        assert_eq!(checkpoints(0, 0, &[700, 710, 1500, 1510, 2000], 2010), [2000, 1510, 700]);
        assert!(checkpoints(950, 960, &[100, 900], 1000).is_empty());
        // two prompts with one beginning and no message that ends there
        assert_eq!(checkpoints(0, 500, &[800], 1000), [800, 500]);
        assert_eq!(checkpoints(0, 500, &[490, 800], 1000), [800, 490]);
        // It is known to the end: a repeated prompt.
        assert_eq!(checkpoints(0, 1000, &[], 1000), [999]);
        assert_eq!(checkpoints(0, 30, &[], 30), [29]);
        assert_eq!(checkpoints(0, 1000, &[990], 1000), [990]);
        assert!(checkpoints(0, 10, &[], 10).is_empty() && checkpoints(990, 1000, &[990], 1000).is_empty());
    }

    #[test]
    fn long_histories_get_a_few() {
        let ends: Vec<usize> = (1..100).map(|i| i * 300).collect();
        let got = checkpoints(0, 0, &ends, 30_000);
        assert_eq!(got.len(), 10);
        assert_eq!(got[..6], [29_700, 29_400, 29_100, 28_800, 28_500, 27_900]);
        assert_eq!(got[8..], [600, 300]);
    }

    /// A client drops reasoning three turns late, when all that follows was computed again a turn before.
    #[test]
    fn the_last_messages_have_one_each() {
        let ends = [11_000, 11_500, 22_300, 22_552, 22_825, 23_131, 25_300, 25_365];
        let got = checkpoints(22_282, 22_289, &ends, 25_374);
        assert_eq!(got, [25_365, 25_300, 23_131, 22_825, 22_552]);
    }
}
