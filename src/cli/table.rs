//! Tables as kubectl's: three spaces between columns, the last column unpadded, upper-case headers.

/// A table. Column widths are fixed once printed, so that watched rows line up with the first ones.
#[derive(Debug, Default)]
pub(super) struct Table {
    widths: Vec<usize>,
}

impl Table {
    /// Formats these rows, and the header unless it is empty.
    pub(super) fn render(&mut self, header: &[&str], rows: &[Vec<String>]) -> String {
        let header: Vec<String> = header.iter().map(|h| (*h).to_owned()).collect();
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| one_line(cell)).collect())
            .collect();
        let all = std::iter::once(&header)
            .chain(&rows)
            .filter(|r| !r.is_empty());
        for row in all.clone() {
            self.widths.resize(row.len().max(self.widths.len()), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for row in all {
            let mut line = String::new();
            for (index, cell) in row.iter().enumerate() {
                line.push_str(cell);
                if index + 1 < row.len() {
                    let pad = self.widths[index] + 3 - cell.chars().count();
                    line.extend(std::iter::repeat_n(' ', pad));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Escapes control characters: a file name may contain newlines, which would add rows, and terminal escape sequences.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        match char.is_control() {
            true => line.extend(char.escape_default()),
            false => line.push(char),
        }
    }
    line
}

pub(super) use crate::types::size;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_stays_one_cell_whatever_is_in_it() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows = [row(["a\nb\u{1b}[2J\u{e4}", "1"]), row(["c", "2"])];
        assert_eq!(
            Table::default().render(&["FILE", "N"], &rows),
            "FILE             N\na\\nb\\u{1b}[2J\u{e4}   1\nc                2\n"
        );
    }
}
