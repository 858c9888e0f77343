//! Pages of the manual as sections of a man page (groff_man(7)).

/// A page of Markdown as a section: its title is the section's, deeper headings are subsections.
pub fn section(page: &str) -> String {
    let mut out = String::new();
    let mut code = false;
    // Whether the next line of text begins a paragraph.
    let mut begins = true;
    for line in page.lines() {
        if line.starts_with("```") {
            code = !code;
            out += if code {
                ".PP\n.RS 4\n.nf\n"
            } else {
                ".fi\n.RE\n"
            };
            begins = true;
        } else if code {
            out += &plain(line);
            out.push('\n');
        } else if let Some(title) = line.strip_prefix("# ") {
            out += &format!(".SH {}\n", quoted(&title.to_uppercase()));
            begins = true;
        } else if let Some((_, title)) = line.split_once("# ").filter(|(marks, _)| is_marks(marks))
        {
            out += &format!(".SS {}\n", quoted(title));
            begins = true;
        } else if line.trim().is_empty() {
            begins = true;
        } else if let Some(item) = line.trim_start().strip_prefix("- ") {
            out += ".IP \\(bu 2\n";
            out += &inline(item);
            begins = false;
        } else if line.starts_with('|') {
            out += &row(line);
            begins = false;
        } else {
            if begins {
                out += ".PP\n";
            }
            out += &inline(line.trim_start());
            begins = false;
        }
    }
    out
}

/// A page with escapes for what is not ASCII, so that every reader of man pages shows it.
pub fn ascii(page: &str) -> String {
    let escaped = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => format!("\\[u{:04X}]", u32::from(c)),
    };
    page.chars().map(escaped).collect()
}

fn is_marks(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'#')
}

/// A row of a table: the first cell is a term, the others explain it. The line below the headings is left out.
fn row(line: &str) -> String {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let rule = |cell: &&str| cell.bytes().all(|byte| b"-:".contains(&byte));
    if cells.iter().all(rule) {
        return String::new();
    }
    let (term, rest) = cells.split_first().map_or(("", &[][..]), |(a, b)| (*a, b));
    format!(".TP\n{}{}", inline(term), inline(&rest.join("; ")))
}

/// One line of text, with code and emphasis in bold, and its end.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut bold = false;
    let text = text.replace("**", "`");
    for (at, part) in text.split('`').enumerate() {
        if at > 0 {
            bold = !bold;
            out += if bold { "\\fB" } else { "\\fR" };
        }
        out += &escaped(part);
    }
    if bold {
        out += "\\fR";
    }
    guarded(out) + "\n"
}

/// A line of code as it is.
fn plain(line: &str) -> String {
    guarded(escaped(line))
}

/// What begins with these would be a request.
fn guarded(line: String) -> String {
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line,
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

fn quoted(title: &str) -> String {
    format!("\"{}\"", escaped(&title.replace(['"', '`'], "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_a_section() {
        let page = "# Power\n\nOne `a-b` line\nand **two**.\n\n## After\n\n- item\n  goes on\n\n```\n.x \\n\n```\n\n\
                    | what | how |\n|---|---|\n| cut | mends |\n";
        let expected = ".SH \"POWER\"\n.PP\nOne \\fBa\\-b\\fR line\nand \\fBtwo\\fR.\n.SS \"After\"\n.IP \\(bu 2\nitem\n\
                        goes on\n.PP\n.RS 4\n.nf\n\\&.x \\en\n.fi\n.RE\n.TP\nwhat\nhow\n.TP\ncut\nmends\n";
        assert_eq!(section(page), expected);
        assert_eq!(ascii("10 × a …"), "10 \\[u00D7] a \\[u2026]");
    }
}
