//! Bar charts as SVG.

use std::fmt::Write as _;

const BAR_HEIGHT: usize = 18;
const LEFT: usize = 260;
const WIDTH: usize = 460;

/// A chart of horizontal bars from 0 on, each with its value behind it.
#[must_use]
pub fn bars(title: &str, unit: &str, values: &[(String, f64)]) -> String {
    let most = values.iter().map(|&(_, value)| value).fold(f64::MIN_POSITIVE, f64::max);
    let height = (values.len() + 2) * (BAR_HEIGHT + 4);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"8\" y=\"18\" font-weight=\"bold\">{} ({})</text>\n",
        LEFT + WIDTH + 120,
        escape(title),
        escape(unit)
    );
    for (row, (name, value)) in values.iter().enumerate() {
        let top = (row + 1) * (BAR_HEIGHT + 4) + 6;
        let length = (value / most * WIDTH as f64).max(0.0);
        let middle = top + BAR_HEIGHT - 5;
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{top}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\" fill=\"#4878a8\"/>\
             <text x=\"{:.1}\" y=\"{middle}\">{}</text>",
            LEFT - 8,
            escape(name),
            LEFT as f64 + length + 6.0,
            number(*value)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// A number with about four digits.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_has_the_whole_width_and_names_are_escaped() {
        let svg = bars("a < b", "1/s", &[("x".to_owned(), 1.0), ("y".to_owned(), 4.0)]);
        assert!(svg.contains("width=\"460.0\"") && svg.contains("width=\"115.0\""));
        assert!(svg.contains("a &lt; b (1/s)") && svg.ends_with("</svg>\n"));
    }
}
