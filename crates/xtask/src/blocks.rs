//! Blocks of a page that a command writes: what stands between two lines of its own.

/// The page with `text` in one of its blocks. `name` is the page's, for errors.
pub fn replaced(
    name: &str,
    page: &str,
    [begin, end]: [&str; 2],
    text: &str,
) -> Result<String, String> {
    let (before, _, after) = parts(name, page, [begin, end])?;
    Ok(format!("{before}{begin}\n\n{text}\n{end}{after}"))
}

/// What stands before a block, in it and after it, without its two lines.
pub fn parts<'p>(
    name: &str,
    page: &'p str,
    [begin, end]: [&str; 2],
) -> Result<(&'p str, &'p str, &'p str), String> {
    let (before, rest) = page
        .split_once(begin)
        .ok_or_else(|| format!("{name} lacks the line {begin}"))?;
    let (inside, after) = rest
        .split_once(end)
        .ok_or_else(|| format!("{name} lacks the line {end} after {begin}"))?;
    Ok((before, inside, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKERS: [&str; 2] = ["<!-- a -->", "<!-- /a -->"];

    #[test]
    fn a_block_is_replaced_and_the_rest_of_the_page_stays() {
        let page = "x\n<!-- a -->\nold\n<!-- /a -->\ny\n";
        let new = replaced("p.md", page, MARKERS, "new\n").unwrap();
        assert_eq!(new, "x\n<!-- a -->\n\nnew\n\n<!-- /a -->\ny\n");
        assert_eq!(replaced("p.md", &new, MARKERS, "new\n").unwrap(), new);
        assert_eq!(parts("p.md", &new, MARKERS).unwrap().1, "\n\nnew\n\n");
    }

    #[test]
    fn a_page_without_the_lines_is_an_error_that_names_both() {
        assert_eq!(
            replaced("p.md", "x", MARKERS, "").unwrap_err(),
            "p.md lacks the line <!-- a -->"
        );
        let error = replaced("p.md", "<!-- a -->", MARKERS, "").unwrap_err();
        assert_eq!(error, "p.md lacks the line <!-- /a --> after <!-- a -->");
    }
}
