"""Puts every mutant of a source file behind a switch: `if crate::spec::mutant(17) { a - b } else { a + b }`.

A mutant is an entry of `cargo mutants --list --json`, with a number `n`. Operands are computed once, before the
switch, so that a file grows by a constant for each mutant, however they are nested. Comments mark where a mutant's own
text begins and ends: it causes every compiler error between them.
"""

import re

import tree_sitter
import tree_sitter_rust

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))
# The kinds of node at which a genre can be placed.
PLACES = {
    "FnValue": ["function_item"],
    "BinaryOperator": ["binary_expression", "compound_assignment_expr"],
    "UnaryOperator": ["unary_expression"],
    "MatchArm": ["match_arm"],
    "MatchArmGuard": ["match_arm"],
    "StructField": ["field_initializer", "shorthand_field_initializer"],
}
COMPARISONS = ["==", "!=", "<", ">", "<=", ">="]
# Appended to src/spec/mod.rs. A panic ends the process at once: one failing test is enough.
SWITCH = """
/// Whether that mutant was chosen.
#[doc(hidden)]
pub fn mutant(n: usize) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static CHOSEN: std::sync::OnceLock<(usize, Option<String>)> = std::sync::OnceLock::new();
    static REACHED: [AtomicBool; %d] = [const { AtomicBool::new(false) }; %d];
    let (chosen, trace) = CHOSEN.get_or_init(|| {
        std::panic::set_hook(Box::new(|_| std::process::exit(101)));
        let chosen = std::env::var("MUTANT").ok().and_then(|n| n.parse().ok());
        (chosen.unwrap_or(usize::MAX), std::env::var("MUTANTS_REACHED").ok())
    });
    if let Some(file) = trace && !REACHED[n].swap(true, Ordering::Relaxed) {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        file.unwrap().write_all(format!("{n}\\n").as_bytes()).unwrap();
    }
    *chosen == n
}
"""


class File:
    """A source file and the mutants that have a place in it."""

    def __init__(self, source, mutants):
        self.source = source.encode()
        self.lines = source.splitlines(keepends=True)
        self.tree = PARSER.parse(self.source)
        self.at = {}
        for mutant in mutants:
            node = self.place(mutant)
            if node:
                self.at.setdefault(node.id, []).append(mutant)

    def offset(self, position):
        """The byte offset of a line and a column, which count letters from 1."""
        before = self.lines[: position["line"] - 1]
        line = self.lines[position["line"] - 1][: position["column"] - 1]
        return len("".join(before).encode()) + len(line.encode())

    def place(self, mutant):
        """The node to rewrite."""
        start = self.offset(mutant["span"]["start"])
        of_function = mutant["genre"] == "FnValue"  # its span is the text between the braces
        node = self.tree.root_node.descendant_for_byte_range(start, start + 1)
        while node and (node.type not in PLACES[mutant["genre"]] or of_function and node.start_byte == start):
            node = node.parent
        around = node
        while around and around.type not in ("function_item", "const_item", "static_item"):
            around = around.parent
        if around is None or around.type != "function_item":
            return None  # a constant
        if mutant["genre"] == "MatchArm" and not any(self.text(c.child_by_field_name("pattern")) == "_" for c in arms(node)):
            return None  # `_ if …` does not match everything
        return node

    def text(self, node):
        return self.source[node.start_byte : node.end_byte].decode()

    def render(self, node=None):
        """The text of a node with all its mutants behind their switches."""
        node = node or self.tree.root_node
        pieces, end = [], node.start_byte
        for child in node.children:
            pieces += [self.source[end : child.start_byte].decode(), self.render(child)]
            end = child.end_byte
        plain = "".join(pieces) + self.source[end : node.end_byte].decode()
        if node.id not in self.at:
            return plain
        return getattr(self, node.type)(node, plain, self.at[node.id])

    def part(self, node, field):
        return self.render(node.child_by_field_name(field))

    def function_item(self, node, _, mutants):
        body = node.child_by_field_name("body")
        head = "".join(self.render(c) + " " for c in node.children[:-1])
        if "impl Iterator" in mutants[0]["function"]["return_type"]:
            # The type must not depend on the switch: the mutant's items, then all of its own items or none.
            items = {m["n"]: value(m).replace("::std::iter::empty", "").replace("::std::iter::once", "") for m in mutants}
            choices = "".join(choice(m, f"vec![{items[m['n']][1:-1]}]") + " else " for m in mutants)
            own = " && ".join(f"!{switch(m)}" for m in mutants)
            item = re.search(r"Item =\s*(.*)>", mutants[0]["function"]["return_type"])[1]
            return f"{head}{{ let others: Vec<{item}> = {choices}{{ vec![] }}; let own = {own};" + (
                f" others.into_iter().chain({self.render(body)}.filter(move |_| own)) }}"
            )
        returns = "".join(choice(m, f"return {value(m)};") for m in mutants)
        return f"{head}{{ {returns} {self.render(body)[1:]}"

    def binary_expression(self, node, _, mutants):
        left, right = self.part(node, "left"), self.part(node, "right")
        operator = self.text(node.child_by_field_name("operator"))
        if operator in ("&&", "||"):
            # With the switch on, `l` decides exactly when it would not in the original: `&&` becomes `||`, and vice versa.
            (mutant,) = mutants
            sign = "!=" if operator == "&&" else "=="
            return f"({{ let l = {left}; if l {sign} {marked(mutant, switch(mutant))} {{ {right} }} else {{ l }} }})"
        if operator in COMPARISONS:
            left, right = f"&({left})", f"&({right})"
        choices = "".join(choice(m, f"l {value(m)} r") + " else " for m in mutants)
        return f"(match ({left}, {right}) {{ (l, r) => {choices}{{ l {operator} r }} }})"

    def compound_assignment_expr(self, node, _, mutants):
        left, right = self.part(node, "left"), self.part(node, "right")
        operator = self.text(node.child_by_field_name("operator"))
        choices = "".join(choice(m, f"{left} {value(m)} r") + " else " for m in mutants)
        return f"{{ let r = {right}; {choices}{{ {left} {operator} r }} }}"

    def unary_expression(self, node, plain, mutants):
        (mutant,) = mutants
        operand = self.render(node.children[-1])
        if plain[0] == "!":
            return f"((!{operand}) != {marked(mutant, switch(mutant))})"
        return f"({choice(mutant, operand)} else {{ {plain} }})"

    def match_arm(self, node, _, mutants):
        pattern = node.child_by_field_name("pattern")
        condition = pattern.child_by_field_name("condition")
        guards = []
        alone = pattern.children[0] if condition else pattern
        guard = f"({self.render(condition)})" if condition else "true"
        for mutant in mutants:
            text = marked(mutant, switch(mutant))
            if mutant["genre"] == "MatchArmGuard" and value(mutant) == "true":
                guard = f"({text} || {guard})"
            else:
                guards.append(f"!{text}")
        rest = self.source[pattern.end_byte : node.child_by_field_name("value").start_byte].decode()
        tail = self.source[node.child_by_field_name("value").end_byte : node.end_byte].decode()
        guard = " && ".join([*guards, guard])
        attributes = "".join(self.render(c) + " " for c in node.children if c.type == "attribute_item")
        return f"{attributes}{self.render(alone)} if {guard}{rest}{self.part(node, 'value')}{tail}"

    def field_initializer(self, node, _, mutants):
        (mutant,) = mutants
        field = self.text(node.child_by_field_name("field"))
        return f"{field}: {self.base_field(node, mutant, field)} else {{ {self.part(node, 'value')} }}"

    def shorthand_field_initializer(self, node, plain, mutants):
        (mutant,) = mutants
        return f"{plain}: {self.base_field(node, mutant, plain)} else {{ {plain} }}"

    def base_field(self, node, mutant, field):
        """The field's value in the struct behind `..`."""
        base = next(c for c in node.parent.children if c.type == "base_field_initializer")
        kind = self.text(node.parent.parent.child_by_field_name("name"))
        base = self.text(base.children[-1])
        return choice(mutant, f"let base: {kind} = {base}; base.{field}")


def arms(arm):
    return [c for c in arm.parent.children if c.type == "match_arm"]


def value(mutant):
    return mutant["replacement"]


def switch(mutant):
    return f"crate::spec::mutant({mutant['n']})"


def marked(mutant, text):
    return f"/*<{mutant['n']}*/{text}/*{mutant['n']}>*/"


def choice(mutant, text):
    return f"if {switch(mutant)} {{ {marked(mutant, text)} }}"


def blamed(text, start, end):
    """The mutants whose own text contains an error, or else those inside the error's text. Offsets in bytes."""
    text = text.encode()
    around, inside = set(), set()
    for mark in re.finditer(rb"/\*<(\d+)\*/", text):
        n = mark[1]
        close = text.index(b"/*" + n + b">*/", mark.end())
        if mark.start() <= start and end <= close:
            around.add((close - mark.start(), int(n)))
        elif start <= mark.start() and close <= end:
            inside.add(int(n))
    return {min(around)[1]} if around else inside
