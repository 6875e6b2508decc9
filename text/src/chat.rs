//! Chat templates: a conversation to text, and to tokens that nobody can forge from inside a message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::Value as Json;

use crate::error::{Error, Result, Status};
use crate::python;
use crate::tokenizer::{Piece, Tokenizer};

/// Instructions a template may run: far more than any conversation needs, few enough to stop an endless loop.
const FUEL: u64 = 20_000_000;

/// Borrowed inputs; the fields are those of `samara_text_chat`.
pub struct Chat<'a> {
    pub messages: &'a str,
    pub tools: &'a str,
    pub variables: &'a str,
    pub template: &'a str,
    pub add_generation_prompt: bool,
    pub now: i64,
}

pub fn render(tokenizer: &Tokenizer, chat: &Chat) -> Result<String> {
    let inputs = Inputs::new(tokenizer, chat)?;
    inputs.render(tokenizer, chat, Arc::new(Disguise::default()))
}

pub fn encode(tokenizer: &Tokenizer, chat: &Chat) -> Result<Vec<u32>> {
    let mut inputs = Inputs::new(tokenizer, chat)?;
    let disguise = Arc::new(Disguise::new(tokenizer, &inputs)?);
    inputs.for_each_json(|json| disguise.put_on(json));
    let text = inputs.render(tokenizer, chat, disguise.clone())?;
    let mut ids = Vec::new();
    for piece in tokenizer.split_at_added_tokens(&text) {
        match piece {
            Piece::Tokens(tokens) => ids.extend(tokens),
            Piece::Text(text) => ids.extend(tokenizer.encode(&disguise.take_off(&text), false, false)?),
        }
    }
    Ok(ids)
}

struct Inputs<'a> {
    messages: Json,
    tools: Json,     // null if absent
    variables: Json, // object
    template: &'a str,
}

impl<'a> Inputs<'a> {
    fn new(tokenizer: &'a Tokenizer, chat: &Chat<'a>) -> Result<Self> {
        let template = match chat.template {
            "" => tokenizer.chat_template.as_deref().ok_or_else(|| {
                Error::invalid_argument("the model has no chat template and none was given")
            })?,
            text => text,
        };
        let messages = parse("messages", chat.messages)?;
        if !messages.is_array() {
            return Err(Error::invalid_argument("messages: expected a JSON array"));
        }
        let tools = if chat.tools.is_empty() { Json::Null } else { parse("tools", chat.tools)? };
        if !tools.is_array() && !tools.is_null() {
            return Err(Error::invalid_argument("tools: expected a JSON array"));
        }
        let variables = parse("variables", if chat.variables.is_empty() { "{}" } else { chat.variables })?;
        if !variables.is_object() {
            return Err(Error::invalid_argument("variables: expected a JSON object"));
        }
        Ok(Self { messages, tools, variables, template })
    }

    fn for_each_json(&mut self, mut change: impl FnMut(&mut Json)) {
        change(&mut self.messages);
        change(&mut self.tools);
        change(&mut self.variables);
    }

    fn render(&self, tokenizer: &Tokenizer, chat: &Chat, disguise: Arc<Disguise>) -> Result<String> {
        let mut context: BTreeMap<String, Value> = BTreeMap::from([
            ("messages".into(), Value::from_serialize(&self.messages)),
            ("tools".into(), Value::from_serialize(&self.tools)),
            ("documents".into(), Value::from(())),
            ("add_generation_prompt".into(), Value::from(chat.add_generation_prompt)),
        ]);
        for (name, id) in [("bos_token", tokenizer.bos), ("eos_token", tokenizer.eos)] {
            if let Some(bytes) = id.and_then(|id| tokenizer.vocab.token_bytes(id)) {
                context.insert(name.into(), Value::from(String::from_utf8_lossy(bytes)));
            }
        }
        for (name, value) in self.variables.as_object().into_iter().flatten() {
            context.insert(name.clone(), Value::from_serialize(value));
        }
        let source = without_generation_tags(self.template);
        let environment = environment(chat.now, disguise);
        let template = environment.template_from_str(&source).map_err(template_failed)?;
        template.render(context).map_err(template_failed)
    }
}

fn parse(what: &str, text: &str) -> Result<Json> {
    serde_json::from_str(text).map_err(|error| Error::invalid_argument(format!("{what}: {error}")))
}

fn template_failed(error: minijinja::Error) -> Error {
    let mut message = format!("chat template: {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message += &format!(": {cause}");
        source = cause.source();
    }
    Error::new(Status::Template, message)
}

/// Jinja as `transformers` sets it up for chat templates.
fn environment(now: i64, disguise: Arc<Disguise>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, _state, value| {
        out.write_str(&python::str(value)).map_err(minijinja::Error::from)
    });
    environment.add_filter("string", |value: Value| python::str(&value));
    environment
        .add_filter("tojson", move |value: Value, options: Kwargs| tojson(&value, &options, &disguise));
    environment.add_function("raise_exception", |message: String| -> std::result::Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: String| {
        python::strftime(now, &format).ok_or_else(|| {
            minijinja::Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now: cannot format '{format}'"),
            )
        })
    });
    environment
}

fn tojson(
    value: &Value,
    options: &Kwargs,
    disguise: &Disguise,
) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<(String, String)> = match options.get::<Option<Vec<String>>>("separators")? {
        None => None,
        Some(pair) => match <[String; 2]>::try_from(pair) {
            Ok([item, key]) => Some((item, key)),
            Err(_) => {
                return Err(minijinja::Error::new(
                    ErrorKind::InvalidOperation,
                    "tojson: separators has two strings",
                ))
            }
        },
    };
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let default_item = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = separators.unwrap_or((default_item.into(), ": ".into()));
    let escape = |c: char, out: &mut String| match disguise.original(c) {
        Some(original) if original.is_ascii() => out.push(c),
        Some(original) => python::escape_utf16(original, out),
        None => python::escape_utf16(c, out),
    };
    let escape = if ensure_ascii { Some(&escape as python::Escape) } else { None };
    python::json(value, &python::JsonStyle { indent, item_separator, key_separator, sort_keys, escape })
}

/// `{% generation %}` marks what to train on and does nothing here; `{% if true %}` does nothing in its place.
fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + length];
        let name = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..start]);
        match name {
            "generation" => out.push_str(&format!("{{%{}%}}", tag.replace(name, "if true"))),
            "endgeneration" => out.push_str(&format!("{{%{}%}}", tag.replace(name, "endif"))),
            _ => out.push_str(&rest[start..start + length + 2]),
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

/// Characters of special tokens and the stand-ins that hide them while a template runs. The stand-ins occur nowhere in
/// the input, and no special token has one, so that what is left of a special token afterwards is the template's.
#[derive(Default)]
struct Disguise {
    stand_ins: BTreeMap<char, char>, // real -> stand-in
    originals: BTreeMap<char, char>, // stand-in -> real
    tags: Vec<String>,               // kept as they are: the template may look for them
}

impl Disguise {
    fn new(tokenizer: &Tokenizer, inputs: &Inputs) -> Result<Self> {
        let special: Vec<&str> = tokenizer
            .added_tokens()
            .iter()
            .filter(|(token, _)| token.special)
            .map(|(token, _)| token.content.as_str())
            .collect();
        // The first character is in every special token. The bars are hidden as well, because a template may put "<"
        // or "<|" in front of a name that it takes from a message.
        let mut hidden: BTreeSet<char> = special.iter().filter_map(|text| text.chars().next()).collect();
        hidden.retain(|c| !c.is_alphanumeric() && !c.is_whitespace());
        hidden.extend(special.iter().flat_map(|text| text.chars()).filter(|c| matches!(c, '|' | '\u{ff5c}')));

        let mut used: BTreeSet<char> = inputs.template.chars().filter(is_noncharacter).collect();
        for json in [&inputs.messages, &inputs.tools, &inputs.variables] {
            visit_strings(json, &mut |text| used.extend(text.chars().filter(is_noncharacter)));
        }
        let mut free = ('\u{fdd0}'..='\u{fdef}').filter(|c| !used.contains(c));
        let mut disguise = Self { tags: template_tags(inputs.template, &special), ..Self::default() };
        for real in hidden {
            let stand_in = free.next().ok_or_else(|| {
                Error::invalid_argument(
                    "the conversation uses too many of the noncharacters U+FDD0 to U+FDEF",
                )
            })?;
            disguise.stand_ins.insert(real, stand_in);
            disguise.originals.insert(stand_in, real);
        }
        Ok(disguise)
    }

    fn original(&self, c: char) -> Option<char> {
        self.originals.get(&c).copied()
    }

    fn put_on(&self, json: &mut Json) {
        match json {
            Json::String(text) => *text = self.hide(text),
            Json::Array(items) => items.iter_mut().for_each(|item| self.put_on(item)),
            Json::Object(map) => {
                let entries = std::mem::take(map);
                map.extend(entries.into_iter().map(|(key, mut item)| {
                    self.put_on(&mut item);
                    (self.hide(&key), item)
                }));
            }
            _ => {}
        }
    }

    fn hide(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let tag = self.tags.iter().find(|tag| rest.starts_with(tag.as_str()));
            let length = tag.map_or(c.len_utf8(), |tag| tag.len());
            match tag {
                Some(tag) => out.push_str(tag),
                None => out.push(self.stand_ins.get(&c).copied().unwrap_or(c)),
            }
            rest = &rest[length..];
        }
        out
    }

    fn take_off(&self, text: &str) -> String {
        text.chars().map(|c| self.original(c).unwrap_or(c)).collect()
    }
}

fn is_noncharacter(c: &char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(c)
}

fn visit_strings(json: &Json, visit: &mut impl FnMut(&str)) {
    match json {
        Json::String(text) => visit(text),
        Json::Array(items) => items.iter().for_each(|item| visit_strings(item, visit)),
        Json::Object(map) => {
            for (key, item) in map {
                visit(key);
                visit_strings(item, visit);
            }
        }
        _ => {}
    }
}

/// Tags such as `</think>` in the source of a template. One that is the start of a special token, holds one, or has a
/// bar in it, is left out.
fn template_tags(template: &str, special: &[&str]) -> Vec<String> {
    let mut tags = BTreeSet::new();
    for (start, _) in template.match_indices('<') {
        let tag = &template[start..];
        let Some(length) = tag[1..].find(['<', '>']).map(|end| end + 2) else { continue };
        let Some(tag) = tag.get(..length).filter(|tag| tag.ends_with('>')) else { continue };
        let plain =
            tag[1..length - 1].chars().all(|c| c.is_alphanumeric() || matches!(c, '/' | '_' | '-' | ':'));
        if plain && length > 2 && !special.iter().any(|text| text.starts_with(tag) || tag.contains(text)) {
            tags.insert(tag.to_owned());
        }
    }
    tags.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tags_that_cannot_become_special_are_kept() {
        let template = "{{ '<think>' }}</think><|im_end|>a < b > c<s><x|y>";
        assert_eq!(template_tags(template, &["<|im_end|>", "<s>"]), ["</think>", "<think>"]);
        assert!(template_tags("<th>", &["<th>ree"]).is_empty());
    }

    #[test]
    fn generation_tags_vanish_and_others_stay() {
        let template = "{%- generation -%}x{% endgeneration %}{% if generation %}y{% endif %}";
        assert_eq!(
            without_generation_tags(template),
            "{%- if true -%}x{% endif %}{% if generation %}y{% endif %}"
        );
    }
}
