//! The literal of a Python dict that is the header of a `.npy` file.

/// The most axes that an array of numpy can have.
const MAX_AXES: usize = 64;

/// A header as it is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Literal<'a> {
    pub(super) descr: Descr<'a>,
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Descr<'a> {
    /// The string that names a type.
    Name(&'a str),
    /// The text of a list, tuple or dict.
    Structured(&'a str),
}

impl<'a> Literal<'a> {
    /// Parses a whole header. The error is the second half of a message.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        Parser { text, at: 0 }.header()
    }
}

/// `text` for a message: quoted, with control characters escaped, and not too long.
pub(super) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Where the parser stands.
struct Parser<'a> {
    text: &'a str,
    /// Always at the start of a character.
    at: usize,
}

impl<'a> Parser<'a> {
    /// `{'descr': ..., 'fortran_order': ..., 'shape': ...}` with nothing but white space around it.
    fn header(mut self) -> Result<Literal<'a>, String> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.eat('}') {
            let key = self.string()?;
            self.expect(':')?;
            let again = match key {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                _ => return Err(format!("unknown key {}", excerpt(key))),
            };
            if again {
                return Err(format!("the key {key:?} comes twice"));
            }
            if !self.eat(',') {
                self.expect('}')?;
                break;
            }
        }
        if self.peek().is_some() {
            return Err(self.unexpected("the end"));
        }
        let missing = |key| move || format!("the key {key:?} is missing");
        Ok(Literal {
            descr: descr.ok_or_else(missing("descr"))?,
            fortran_order: fortran_order.ok_or_else(missing("fortran_order"))?,
            shape: shape.ok_or_else(missing("shape"))?,
        })
    }

    fn descr(&mut self) -> Result<Descr<'a>, String> {
        match self.peek() {
            Some('[' | '(' | '{') => self.bracketed().map(Descr::Structured),
            _ => self.string().map(Descr::Name),
        }
    }

    /// The text from an opening bracket to the one that closes it, whatever is between. Loops rather than
    /// recurs: a header can open more brackets than the stack has room for.
    fn bracketed(&mut self) -> Result<&'a str, String> {
        let start = self.at;
        let mut depth = 0;
        loop {
            match self.peek() {
                Some('[' | '(' | '{') => depth += 1,
                Some(']' | ')' | '}') => depth -= 1,
                Some('\'' | '"') => {
                    self.string()?;
                    continue;
                }
                Some(_) => {}
                None => return Err(self.unexpected("a closing bracket")),
            }
            self.bump();
            if depth == 0 {
                return Ok(&self.text[start..self.at]);
            }
        }
    }

    /// A string in single or double quotes, as Python's `repr` writes it, taken as it stands: none of the
    /// strings that mean something here has an escape in it.
    fn string(&mut self) -> Result<&'a str, String> {
        let Some(quote @ ('\'' | '"')) = self.peek() else {
            return Err(self.unexpected("a string"));
        };
        self.bump();
        let start = self.at;
        loop {
            match self.text[self.at..].chars().next() {
                Some(c) if c == quote => break,
                Some('\\') => {
                    self.bump();
                    self.bump();
                }
                Some(_) => self.bump(),
                None => return Err("a string does not end".into()),
            }
        }
        let string = &self.text[start..self.at];
        self.bump();
        Ok(string)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.skip_white();
        let word = self.take_while(|c| c.is_alphanumeric() || c == '_');
        match word {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => {
                self.at -= word.len();
                Err(self.unexpected("True or False"))
            }
        }
    }

    /// A tuple of integers: `()`, `(3,)`, `(10, 4)` or `(10, 4,)`. `(3)` is an integer to Python, and to
    /// numpy no shape.
    fn shape(&mut self) -> Result<Vec<u64>, String> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.eat(')') {
            if shape.len() == MAX_AXES {
                return Err(format!("the shape has more than {MAX_AXES} axes"));
            }
            shape.push(self.integer()?);
            if !self.eat(',') {
                self.expect(')')?;
                if shape.len() == 1 {
                    return Err("the shape is a number in brackets, not a tuple".into());
                }
                break;
            }
        }
        Ok(shape)
    }

    fn integer(&mut self) -> Result<u64, String> {
        self.skip_white();
        let digits = self.take_while(|c| c.is_ascii_digit());
        // Octal in Python 2, an error in Python 3.
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(format!("a number with leading zeros, {}", excerpt(digits)));
        }
        if digits.is_empty() {
            return Err(self.unexpected("an axis length"));
        }
        // Python 2 wrote long integers so.
        if self.text[self.at..].starts_with('L') {
            self.bump();
        }
        digits.parse().map_err(|_| format!("the axis length {} is too large", excerpt(digits)))
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.eat(wanted) { Ok(()) } else { Err(self.unexpected(&format!("'{wanted}'"))) }
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.bump();
        }
        found
    }

    /// The next character that is not white space, which is where the parser then stands.
    fn peek(&mut self) -> Option<char> {
        self.skip_white();
        self.text[self.at..].chars().next()
    }

    /// Goes past one character, if there is one.
    fn bump(&mut self) {
        self.at += self.text[self.at..].chars().next().map_or(0, char::len_utf8);
    }

    fn skip_white(&mut self) {
        self.take_while(|c| matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0c'));
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let taken = &rest[..rest.find(|c| !belongs(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    fn unexpected(&self, wanted: &str) -> String {
        match self.text[self.at..].chars().next() {
            Some(c) => format!("{c:?} at its byte {} where {wanted} should be", self.at),
            None => format!("it ends where {wanted} should be"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn malformed_dicts_are_refused() {
        let cases = r#"
             => it ends where '{' should be
            { => it ends where a string should be
            {} => "descr" is missing
            {'descr': '<i4', 'fortran_order': False} => "shape" is missing
            {'descr': '<i4', 'shape': (2,)} => "fortran_order" is missing
            {'descr: 1 => a string does not end
            {'descr\ => a string does not end
            {'descr': [('a', '<i4') => it ends where a closing bracket should be
            {'descr': 4, FORTRAN, SHAPE} => '4' at its byte 10 where a string should be
            {DESCR, 'fortran_order': false, SHAPE} => where True or False should be
            {DESCR, 'fortran_order': Falsey, SHAPE} => where True or False should be
            {DESCR, 'fortran_order': 0, SHAPE} => where True or False should be
            {DESCR, FORTRAN, 'shape': 2} => where '(' should be
            {DESCR, FORTRAN, 'shape': [2]} => where '(' should be
            {DESCR, FORTRAN, 'shape': (2)} => not a tuple
            {DESCR, FORTRAN, 'shape': (-2,)} => '-' at its byte
            {DESCR, FORTRAN, 'shape': (2.0,)} => '.' at its byte
            {DESCR, FORTRAN, 'shape': (,)} => where an axis length should be
            {DESCR, FORTRAN, 'shape': (2,,)} => where an axis length should be
            {DESCR, FORTRAN, 'shape': (010,)} => leading zeros
            {DESCR, FORTRAN, 'shape': (99999999999999999999,)} => too large
            {DESCR, FORTRAN, SHAPE, 'metadata': {}} => unknown key "metadata"
            {DESCR, FORTRAN, SHAPE, SHAPE} => "shape" comes twice
            {DESCR, FORTRAN, SHAPE 'x': 1} => where '}' should be
            {DESCR, FORTRAN, SHAPE}} => where the end should be
            {DESCR, FORTRAN, SHAPE}NUL => '\0' at its byte"#;
        let meanings = [
            ("DESCR", "'descr': '<i4'"),
            ("FORTRAN", "'fortran_order': False"),
            ("SHAPE", "'shape': (2,)"),
            ("NUL", "\0"),
        ];
        for line in cases.lines().skip(1) {
            let (text, part) = line.trim_start().split_once("=> ").unwrap();
            let text =
                meanings.iter().fold(text.to_string(), |text, (word, meaning)| text.replace(word, meaning));
            let error = Literal::parse(text.trim_end()).expect_err(&text);
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    }

    #[test]
    fn what_is_nested_or_long_is_refused_shortly() {
        let with_shape =
            |shape: &str| format!("{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}}}");
        let axes = with_shape(&format!("({})", "1,".repeat(65)));
        assert_eq!(Literal::parse(&axes).unwrap_err(), "the shape has more than 64 axes");
        let digits = with_shape(&format!("({},)", "9".repeat(100_000)));
        assert!(Literal::parse(&digits).unwrap_err().len() < 200);
        let key = format!("{{'{}': 1}}", "é".repeat(100_000));
        assert!(Literal::parse(&key).unwrap_err().len() < 200);
        let deep = format!("{{'descr': {}", "[".repeat(1 << 20));
        assert_eq!(Literal::parse(&deep).unwrap_err(), "it ends where a closing bracket should be");
    }

    #[test]
    fn every_spelling_of_a_shape_is_read() {
        for (shape, axes) in [
            ("()", &[][..]),
            ("( )", &[]),
            ("(768,)", &[768]),
            ("(10L,)", &[10]),
            ("(10,4)", &[10, 4]),
            ("( 10 , 4 , )", &[10, 4]),
            ("(0, 18446744073709551615)", &[0, u64::MAX]),
        ] {
            let text = format!("{{'shape': {shape}, 'fortran_order': True, 'descr': [('a', '<i4')]}}\n");
            let literal = Literal::parse(&text).unwrap();
            let descr = Descr::Structured("[('a', '<i4')]");
            assert_eq!(literal, Literal { descr, fortran_order: true, shape: axes.to_vec() });
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[{}()\\[\\]'\"\\\\,: a-zA-Z0-9é<|\n]{0,60}", any in ".{0,40}") {
            let starts = ["", "{'descr': ", "{'shape': (", "{'fortran_order':", "{'"];
            for start in starts {
                let _ = Literal::parse(&format!("{start}{text}"));
                let _ = Literal::parse(&format!("{start}{any}"));
            }
        }
    }
}
