//! A line difference for people: what was expected, what came, three lines of context.

const CONTEXT: usize = 3;
/// Above this many cells the table of the longest common subsequence is not worth its memory.
const MAX_CELLS: usize = 4_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    Same(&'a str),
    Expected(&'a str),
    Actual(&'a str),
}

/// The difference as text: `-` was expected, `+` came, `...` stands for equal lines left out. Empty where both agree.
pub fn lines(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<&str>, Vec<&str>) =
        (expected.lines().collect(), actual.lines().collect());
    if expected == actual {
        return String::new();
    }
    render(&script(&expected, &actual))
}

fn script<'a>(expected: &[&'a str], actual: &[&'a str]) -> Vec<Line<'a>> {
    let head = expected
        .iter()
        .zip(actual)
        .take_while(|(a, b)| a == b)
        .count();
    let (e, a) = (&expected[head..], &actual[head..]);
    let tail = e
        .iter()
        .rev()
        .zip(a.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let (middle_e, middle_a) = (&e[..e.len() - tail], &a[..a.len() - tail]);
    let mut script: Vec<Line<'a>> = expected[..head].iter().map(|l| Line::Same(l)).collect();
    script.extend(middle(middle_e, middle_a));
    script.extend(e[e.len() - tail..].iter().map(|l| Line::Same(l)));
    script
}

fn middle<'a>(expected: &[&'a str], actual: &[&'a str]) -> Vec<Line<'a>> {
    let (rows, columns) = (expected.len(), actual.len());
    let width = columns + 1;
    if (rows + 1).saturating_mul(width) > MAX_CELLS {
        let gone = expected.iter().map(|l| Line::Expected(l));
        return gone.chain(actual.iter().map(|l| Line::Actual(l))).collect();
    }
    // longest[i][j]: length of the longest common subsequence of expected[i..] and actual[j..].
    let mut longest = vec![0u32; (rows + 1) * width];
    for i in (0..rows).rev() {
        for j in (0..columns).rev() {
            longest[i * width + j] = if expected[i] == actual[j] {
                longest[(i + 1) * width + j + 1] + 1
            } else {
                longest[(i + 1) * width + j].max(longest[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut script) = (0, 0, Vec::new());
    while i < rows || j < columns {
        if i < rows && j < columns && expected[i] == actual[j] {
            script.push(Line::Same(expected[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == columns
            || (i < rows && longest[(i + 1) * width + j] >= longest[i * width + j + 1])
        {
            script.push(Line::Expected(expected[i]));
            i += 1;
        } else {
            script.push(Line::Actual(actual[j]));
            j += 1;
        }
    }
    script
}

fn render(script: &[Line<'_>]) -> String {
    let changed: Vec<usize> = (0..script.len())
        .filter(|i| !matches!(script[*i], Line::Same(_)))
        .collect();
    let near = |i: usize| {
        let next = changed.partition_point(|c| *c < i);
        let after = changed.get(next).is_some_and(|c| c - i <= CONTEXT);
        after
            || next
                .checked_sub(1)
                .is_some_and(|p| i - changed[p] <= CONTEXT)
    };
    let (mut text, mut skipping) = (String::new(), false);
    for (i, line) in script.iter().enumerate() {
        let shown = near(i);
        if !shown && !skipping {
            text.push_str("  ...\n");
        }
        skipping = !shown;
        if shown {
            let (mark, line) = match line {
                Line::Same(l) => (' ', l),
                Line::Expected(l) => ('-', l),
                Line::Actual(l) => ('+', l),
            };
            text.push_str(format!("{mark} {line}").trim_end());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(lines("a\nb\n", "a\nb"), "");
    }

    #[test]
    fn a_changed_line_stands_in_its_context() {
        let expected: String = (0..20).map(|i| format!("line {i}\n")).collect();
        let actual = expected.replace("line 9\n", "line nine\nmore\n");
        let wanted = [
            "  ...",
            "  line 6",
            "  line 7",
            "  line 8",
            "- line 9",
            "+ line nine",
            "+ more",
            "  line 10",
            "  line 11",
            "  line 12",
            "  ...\n",
        ]
        .join("\n");
        assert_eq!(lines(&expected, &actual), wanted);
    }

    #[test]
    fn insertions_and_deletions_keep_the_common_lines() {
        assert_eq!(lines("a\nb\nc\n", "b\nc\nd\n"), "- a\n  b\n  c\n+ d\n");
        assert_eq!(lines("", "new\n"), "+ new\n");
    }

    #[test]
    fn huge_differences_do_not_need_huge_memory() {
        let expected: String = (0..5000).map(|i| format!("e{i}\n")).collect();
        let actual: String = (0..5000).map(|i| format!("a{i}\n")).collect();
        assert_eq!(lines(&expected, &actual).lines().count(), 10_000);
    }
}
