//! The structure of an interface type, without the names that its author gave it: two functions fit if their shapes are
//! equal. Used by `preflight` to compare what a component needs with what this host offers, and to say where they differ.

use std::fmt;
use wit_parser::{Function, Handle, Resolve, Type, TypeDefKind};

/// The longest shape that is printed whole, in bytes; a longer one is cut, since the difference is named beside it.
const PRINTED: usize = 160;

/// A constructor and its labelled parts. A part without a shape is a bare case; a label may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    word: String,
    parts: Vec<(String, Option<Shape>)>,
}

/// Where two shapes differ first.
pub(super) struct Difference {
    /// A dotted path of labels; empty when the whole differs.
    pub path: String,
    pub left: String,
    pub right: String,
}

impl Shape {
    pub(super) fn of_function(resolve: &Resolve, function: &Function) -> Shape {
        let mut parts: Vec<_> =
            function.params.iter().map(|param| (param.name.clone(), Some(Shape::of(resolve, &param.ty)))).collect();
        if let Some(result) = &function.result {
            parts.push(("->".into(), Some(Shape::of(resolve, result))));
        }
        let word = if function.kind.is_async() { "async func" } else { "func" };
        Shape { word: word.into(), parts }
    }

    fn of(resolve: &Resolve, ty: &Type) -> Shape {
        let id = match ty {
            Type::Id(id) => *id,
            primitive => return Shape::leaf(primitive_name(primitive)),
        };
        let of = |ty: &Type| Some(Shape::of(resolve, ty));
        let bare = |ty: &Type| (String::new(), of(ty));
        let optional = |ty: &Option<Type>| {
            (String::new(), Some(ty.as_ref().map_or(Shape::leaf("_"), |ty| Shape::of(resolve, ty))))
        };
        let def = &resolve.types[id];
        let (word, parts) = match &def.kind {
            TypeDefKind::Type(ty) => return Shape::of(resolve, ty),
            TypeDefKind::Record(record) => {
                ("record", record.fields.iter().map(|field| (field.name.clone(), of(&field.ty))).collect())
            }
            TypeDefKind::Variant(variant) => (
                "variant",
                variant.cases.iter().map(|case| (case.name.clone(), case.ty.as_ref().and_then(of))).collect(),
            ),
            TypeDefKind::Enum(cases) => ("enum", cases.cases.iter().map(|case| (case.name.clone(), None)).collect()),
            TypeDefKind::Flags(flags) => ("flags", flags.flags.iter().map(|flag| (flag.name.clone(), None)).collect()),
            TypeDefKind::Tuple(tuple) => ("tuple", tuple.types.iter().map(bare).collect()),
            TypeDefKind::Option(ty) => ("option", vec![bare(ty)]),
            TypeDefKind::List(ty) => ("list", vec![bare(ty)]),
            TypeDefKind::Result(result) => ("result", vec![optional(&result.ok), optional(&result.err)]),
            TypeDefKind::Future(ty) => ("future", vec![optional(ty)]),
            TypeDefKind::Stream(ty) => ("stream", vec![optional(ty)]),
            TypeDefKind::Map(key, value) => ("map", vec![bare(key), bare(value)]),
            TypeDefKind::FixedLengthList(ty, length) => {
                return Shape { word: format!("list of {length}"), parts: vec![bare(ty)] };
            }
            TypeDefKind::Handle(Handle::Own(id)) => ("own", vec![bare(&Type::Id(*id))]),
            TypeDefKind::Handle(Handle::Borrow(id)) => ("borrow", vec![bare(&Type::Id(*id))]),
            TypeDefKind::Resource => return Shape::leaf(def.name.as_deref().unwrap_or("resource")),
            TypeDefKind::Unknown => return Shape::leaf("unknown"),
        };
        Shape { word: word.into(), parts }
    }

    fn leaf(word: &str) -> Shape {
        Shape { word: word.into(), parts: Vec::new() }
    }

    /// Where `self` and `other` differ first, or nothing when they fit.
    pub(super) fn difference(&self, other: &Shape) -> Option<Difference> {
        let labels = |shape: &Shape| -> Vec<(String, bool)> {
            shape.parts.iter().map(|(label, part)| (label.clone(), part.is_some())).collect()
        };
        if self.word != other.word || labels(self) != labels(other) {
            return Some(Difference { path: String::new(), left: self.short(), right: other.short() });
        }
        self.parts.iter().zip(&other.parts).find_map(|((label, left), (_, right))| {
            let mut difference = left.as_ref()?.difference(right.as_ref()?)?;
            let label = match label.as_str() {
                "" => self.word.as_str(),
                "->" => "result",
                label => label,
            };
            difference.path =
                if difference.path.is_empty() { label.to_owned() } else { format!("{label}.{}", difference.path) };
            Some(difference)
        })
    }

    /// The shape as text, cut when it is long.
    pub(super) fn short(&self) -> String {
        let text = self.to_string();
        match text.char_indices().nth(PRINTED) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = match self.word.as_str() {
            "func" | "async func" => ("(", ")"),
            "record" | "variant" | "enum" | "flags" => (" { ", " }"),
            _ if self.parts.is_empty() => ("", ""),
            _ => ("<", ">"),
        };
        f.write_str(&self.word)?;
        f.write_str(open)?;
        let mut result = None;
        for (position, (label, part)) in self.parts.iter().enumerate() {
            if label == "->" {
                result = part.as_ref();
                continue;
            }
            if position > 0 {
                f.write_str(", ")?;
            }
            match (part, self.word.as_str()) {
                (None, _) => f.write_str(label)?,
                (Some(part), "variant") => write!(f, "{label}({part})")?,
                (Some(part), _) if label.is_empty() => write!(f, "{part}")?,
                (Some(part), _) => write!(f, "{label}: {part}")?,
            }
        }
        f.write_str(close)?;
        if let Some(result) = result { write!(f, " -> {result}") } else { Ok(()) }
    }
}

fn primitive_name(ty: &Type) -> &'static str {
    match ty {
        Type::Bool => "bool",
        Type::U8 => "u8",
        Type::U16 => "u16",
        Type::U32 => "u32",
        Type::U64 => "u64",
        Type::S8 => "s8",
        Type::S16 => "s16",
        Type::S32 => "s32",
        Type::S64 => "s64",
        Type::F32 => "f32",
        Type::F64 => "f64",
        Type::Char => "char",
        Type::String => "string",
        Type::ErrorContext => "error-context",
        Type::Id(_) => "named",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(wit: &str) -> Shape {
        let mut resolve = Resolve::default();
        let package = resolve.push_source("t.wit", &format!("package t:t; interface i {{ {wit} }}")).unwrap();
        let interface = resolve.packages[package].interfaces["i"];
        Shape::of_function(&resolve, &resolve.interfaces[interface].functions["f"])
    }

    #[test]
    fn names_of_types_do_not_matter_and_structure_does() {
        let left = shape("record a { x: u8 } f: func(p: a) -> option<a>;");
        let right = shape("record b { x: u8 } type c = b; f: func(p: c) -> option<b>;");
        assert!(left.difference(&right).is_none());
        assert_eq!(left.to_string(), "func(p: record { x: u8 }) -> option<record { x: u8 }>");
    }

    #[test]
    fn the_first_difference_is_named_with_its_path() {
        let left = shape("record a { x: u8, y: list<u16> } f: func(p: a) -> result<_, string>;");
        let right = shape("record a { x: u8, y: list<u32> } f: func(p: a) -> result<_, string>;");
        let difference = left.difference(&right).unwrap();
        assert_eq!(
            (difference.path.as_str(), difference.left.as_str(), difference.right.as_str()),
            ("p.y.list", "u16", "u32")
        );
    }

    #[test]
    fn an_added_case_is_a_difference_of_the_whole_enum() {
        let difference = shape("enum e { a } f: func() -> e;").difference(&shape("enum e { a, b } f: func() -> e;"));
        let difference = difference.unwrap();
        assert_eq!(difference.path, "result");
        assert_eq!((difference.left.as_str(), difference.right.as_str()), ("enum { a }", "enum { a, b }"));
    }
}
