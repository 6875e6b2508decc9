//! What chat templates expect of Python: `str()`, `json.dumps` and `strftime`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// `str(value)`.
pub fn str(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => repr(value),
    }
}

/// `repr(value)`.
pub fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None => "None".into(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.into(),
        ValueKind::Number => number(value),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Map => {
            let entries = entries(value);
            let entries: Vec<String> =
                entries.iter().map(|(key, item)| format!("{}: {}", repr(key), repr(item))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        ValueKind::Seq => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect();
            format!("[{}]", items.join(", "))
        }
        _ => value.to_string(),
    }
}

fn entries(map: &Value) -> Vec<(Value, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    keys.map(|key| (key.clone(), map.get_item(&key).unwrap_or_default())).collect()
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
    // Both languages print the shortest digits that read back, and change to exponents at the same sizes.
    let text = format!("{number:?}");
    match text.split_once('e') {
        None if number.is_nan() => "nan".into(),
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(rest) => ('-', rest),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Writes one character in escaped form.
pub type Escape<'a> = &'a dyn Fn(char, &mut String);

/// The keyword arguments of `json.dumps` that templates use.
pub struct JsonStyle<'a> {
    pub indent: Option<usize>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    /// Writes characters beyond ASCII, with `ensure_ascii`; None leaves them as they are.
    pub escape: Option<Escape<'a>>,
}

/// `json.dumps(value)`.
pub fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out)
}

fn write_json(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&json_number(value)),
        ValueKind::String => write_json_string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Map => {
            let mut entries: Vec<(String, Value)> =
                entries(value).into_iter().map(|(key, item)| (json_key(&key), item)).collect();
            if style.sort_keys {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_items('{', '}', &entries, style, depth, out, |(key, item), out| {
                write_json_string(key, style, out);
                out.push_str(&style.key_separator);
                write_json(item, style, depth + 1, out)
            })?;
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items('[', ']', &items, style, depth, out, |item, out| {
                write_json(item, style, depth + 1, out)
            })?;
        }
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: a value of type {kind} has no JSON form"),
            ))
        }
    }
    Ok(())
}

fn write_items<T>(
    open: char,
    close: char,
    items: &[T],
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write_item: impl FnMut(&T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(depth + 1, out);
        write_item(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}

fn json_key(key: &Value) -> String {
    match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        _ => json_number(key),
    }
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        text => text.to_owned(),
    }
}

fn write_json_string(text: &str, style: &JsonStyle, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 => escape_utf16(c, out),
            c if c.is_ascii() => out.push(c),
            c => match style.escape {
                Some(escape) => escape(c, out),
                None => out.push(c),
            },
        }
    }
    out.push('"');
}

/// `\uXXXX`, twice for a character beyond the first plane.
pub fn escape_utf16(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        let _ = write!(out, "\\u{unit:04x}");
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `datetime.strftime` for a local time in seconds since 1970, in the C locale; None for a directive it does not know.
pub fn strftime(seconds: i64, format: &str) -> Option<String> {
    let day = seconds.div_euclid(86_400);
    let second = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, date) = civil_date(day);
    let weekday = (day + 4).rem_euclid(7);
    let day_of_year = day - days_since_epoch(year, 1, 1) + 1;
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let half = if hour < 12 { "AM" } else { "PM" };
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[weekday as usize];

    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = rest.next()?;
        let unpadded = directive == '-';
        if unpadded {
            directive = rest.next()?;
        }
        let two = |number: i64| if unpadded { number.to_string() } else { format!("{number:02}") };
        out += &match directive {
            'Y' => format!("{year}"),
            'y' => two(year.rem_euclid(100)),
            'm' => two(month),
            'd' => two(date),
            'e' => format!("{date:2}"),
            'H' => two(hour),
            'I' => two(hour12),
            'M' => two(minute),
            'S' => two(second),
            'j' => {
                if unpadded {
                    day_of_year.to_string()
                } else {
                    format!("{day_of_year:03}")
                }
            }
            'p' => half.into(),
            'B' => month_name.into(),
            'b' | 'h' => month_name[..3].into(),
            'A' => day_name.into(),
            'a' => day_name[..3].into(),
            'w' => weekday.to_string(),
            'u' => if weekday == 0 { 7 } else { weekday }.to_string(),
            'F' => format!("{year}-{month:02}-{date:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            'D' => format!("{month:02}/{date:02}/{:02}", year.rem_euclid(100)),
            '%' => "%".into(),
            _ => return None,
        };
    }
    Some(out)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, counted in years that start in March so that the leap
/// day comes last.
fn days_since_epoch(year: i64, month: i64, date: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    year * 365 + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (month * 153 + 2) / 5
        + date
        - 719_469
}

fn civil_date(day: i64) -> (i64, i64, i64) {
    // A mean year is 365.2425 days; the guess is off by at most one.
    let mut year = 1970 + day.div_euclid(365) - day.div_euclid(365) / 1461;
    while days_since_epoch(year, 1, 1) > day {
        year -= 1;
    }
    while days_since_epoch(year + 1, 1, 1) <= day {
        year += 1;
    }
    let month = (1..=12).rev().find(|&month| days_since_epoch(year, month, 1) <= day).unwrap_or(1);
    (year, month, day - days_since_epoch(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let format = "%Y-%m-%d %H:%M:%S %A %j";
        assert_eq!(strftime(0, format).unwrap(), "1970-01-01 00:00:00 Thursday 001");
        assert_eq!(strftime(951_782_399, format).unwrap(), "2000-02-28 23:59:59 Monday 059");
        assert_eq!(strftime(951_782_400, format).unwrap(), "2000-02-29 00:00:00 Tuesday 060");
        assert_eq!(strftime(1_735_689_599, format).unwrap(), "2024-12-31 23:59:59 Tuesday 366");
        assert_eq!(strftime(-1, format).unwrap(), "1969-12-31 23:59:59 Wednesday 365");
        assert_eq!(
            strftime(951_782_400, "%d %B, %b %-d %I %p %y %%").unwrap(),
            "29 February, Feb 29 12 AM 00 %"
        );
        assert_eq!(strftime(0, "%Q"), None);
    }

    #[test]
    fn numbers_print_as_python_prints_them() {
        for (value, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (1e-4, "0.0001"),
            (123456789012345.6, "123456789012345.6"),
        ] {
            assert_eq!(repr(&Value::from(value)), expected);
        }
    }
}
