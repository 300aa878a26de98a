//! Which inputs of a call share memory with one that it writes. A plan takes inputs for memory of their own; a host that cannot promise that asks here.

/// Where an input lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// Its first byte.
    pub begin: u64,
    /// The byte behind its last.
    pub end: u64,
    /// Which input it is.
    pub input: usize,
    /// Whether the call writes it.
    pub written: bool,
}

/// The written inputs that share bytes with another, in their order.
pub fn overlaps(ranges: &mut [Range]) -> Vec<usize> {
    ranges.sort_unstable();
    let mut found = vec![];
    // Of what lies before: the end of all, and the written ones that have not ended.
    let mut end = 0;
    let mut open: Vec<Range> = vec![];
    for range in ranges.iter() {
        open.retain(|earlier| earlier.end > range.begin);
        found.extend(open.iter().map(|earlier| earlier.input));
        if range.written {
            if range.begin < end {
                found.push(range.input);
            }
            open.push(*range);
        }
        end = end.max(range.end);
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_are_those_of_every_pair() {
        // All ways to put three ranges of up to three bytes into six, each written or not.
        let places: Vec<(u64, u64, bool)> = (0..6)
            .flat_map(|begin| (1..=3).map(move |bytes| (begin, begin + bytes)))
            .flat_map(|(begin, end)| [(begin, end, false), (begin, end, true)])
            .collect();
        let count = places.len();
        for choice in 0..count.pow(3) {
            let chosen = [
                choice % count,
                choice / count % count,
                choice / count / count,
            ];
            let mut ranges: Vec<Range> = chosen
                .iter()
                .enumerate()
                .map(|(input, &place)| {
                    let (begin, end, written) = places[place];
                    Range {
                        begin,
                        end,
                        input,
                        written,
                    }
                })
                .collect();
            let expected: Vec<usize> = (0..3)
                .filter(|&a| {
                    ranges[a].written
                        && (0..3).any(|b| {
                            a != b
                                && ranges[a].begin < ranges[b].end
                                && ranges[b].begin < ranges[a].end
                        })
                })
                .collect();
            assert_eq!(overlaps(&mut ranges), expected);
        }
    }
}
