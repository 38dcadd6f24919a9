//! How much happened in the last minute, to the second.

const SECONDS: usize = 60;

/// Counts of the last 60 seconds, one bucket a second: a limit holds over any minute, not only over those of the clock.
#[derive(Debug, Clone)]
pub struct Minute {
    buckets: [u64; SECONDS],
    /// Second of the newest bucket.
    head: u64,
    sum: u64,
}

impl Minute {
    pub fn new() -> Self {
        Self { buckets: [0; SECONDS], head: 0, sum: 0 }
    }

    fn index(second: u64) -> usize {
        (second % SECONDS as u64) as usize
    }

    /// Forgets what is a minute old.
    fn turn(&mut self, second: u64) {
        for step in 1..=second.saturating_sub(self.head).min(SECONDS as u64) {
            let bucket = &mut self.buckets[Self::index(self.head + step)];
            self.sum -= *bucket;
            *bucket = 0;
        }
        self.head = self.head.max(second);
    }

    pub fn add(&mut self, second: u64, n: u64) {
        self.turn(second);
        // Sums stay far from overflowing, whatever is added.
        let n = n.min(u64::from(u32::MAX));
        self.buckets[Self::index(self.head)] += n;
        self.sum += n;
    }

    /// Takes back what was added lately.
    pub fn remove(&mut self, second: u64, n: u64) {
        self.turn(second);
        let mut left = n;
        for step in 0..(SECONDS as u64).min(self.head + 1) {
            let bucket = &mut self.buckets[Self::index(self.head - step)];
            let taken = left.min(*bucket);
            *bucket -= taken;
            self.sum -= taken;
            left -= taken;
        }
    }

    /// Seconds until the sum is below `limit`, if nothing is added. A limit of 0 is never met: then a minute.
    pub fn wait(&mut self, second: u64, limit: u64) -> u64 {
        self.turn(second);
        let mut left = self.sum;
        if left < limit {
            return 0;
        }
        for step in 1..SECONDS as u64 {
            left -= self.buckets[Self::index(self.head + step)];
            if left < limit {
                return step;
            }
        }
        SECONDS as u64
    }
}
