//! Pages with several tables in a row, aligned as by Go's tab writer, which kubectl uses for descriptions: a column is
//! as wide as its widest cell in consecutive lines, plus two spaces.

use super::table::one_line;

/// Lines of cells. Newlines in a cell are escaped.
#[derive(Debug, Default)]
pub(super) struct Sheet(Vec<Vec<String>>);

impl Sheet {
    /// Adds a line; its first cell is indented by two spaces for each level.
    pub(super) fn line<S: AsRef<str>>(&mut self, level: usize, cells: impl IntoIterator<Item = S>) {
        let mut cells: Vec<String> = cells.into_iter().map(|c| one_line(c.as_ref())).collect();
        if let Some(first) = cells.first_mut() {
            *first = format!("{:indent$}{first}", "", indent = level * 2);
        }
        self.0.push(cells);
    }

    /// Adds a key with several values, one a line.
    pub(super) fn list(&mut self, key: &str, values: Vec<String>) {
        let none = || "<none>".to_owned();
        let mut values = values.into_iter();
        self.line(0, [key, &values.next().unwrap_or_else(none)]);
        values.for_each(|value| self.line(0, ["", &value]));
    }

    /// Adds titles, each underlined.
    pub(super) fn titles(&mut self, titles: &[&str]) {
        self.line(1, titles);
        self.line(1, titles.iter().map(|title| "-".repeat(title.len())));
    }

    /// Returns the formatted text.
    pub(super) fn render(&self) -> String {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<Vec<usize>> = (0..columns).map(|column| self.widths(column)).collect();
        let mut text = String::new();
        for (index, line) in self.0.iter().enumerate() {
            let mut shown = String::new();
            for (column, cell) in line.iter().enumerate() {
                shown.push_str(cell);
                if column + 1 < line.len() {
                    let pad = widths[column][index].saturating_sub(cell.chars().count());
                    shown.extend(std::iter::repeat_n(' ', pad));
                }
            }
            text.push_str(shown.trim_end());
            text.push('\n');
        }
        text
    }

    /// Returns the width of a column in each line. The last cell of a line belongs to no column.
    fn widths(&self, column: usize) -> Vec<usize> {
        let mut widths = vec![0; self.0.len()];
        let mut begin = 0;
        while begin < self.0.len() {
            let block = self.0[begin..].iter();
            let block = block.take_while(|line| line.len() > column + 1).count();
            let cells = self.0[begin..begin + block].iter();
            let widest = cells.map(|line| line[column].chars().count()).max();
            widths[begin..begin + block].fill(widest.unwrap_or(0) + 2);
            begin += block.max(1);
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_in_the_lines_around_them() {
        let mut sheet = Sheet::default();
        sheet.line(0, ["Name:", "box"]);
        sheet.list("Labels:", vec!["a=b".to_owned(), "c=\nd".to_owned()]);
        sheet.line(0, ["Addresses:"]);
        sheet.titles(&["Type", "Address", "More"]);
        sheet.line(1, ["InternalIP", "::1", ""]);
        sheet.line(0, ["Events:", "<none>"]);
        let expected = "Name:    box\nLabels:  a=b\n         c=\\nd\nAddresses:\n  Type        Address  More\n  \
                        ----        -------  ----\n  InternalIP  ::1\nEvents:       <none>\n";
        assert_eq!(sheet.render(), expected);
    }
}
