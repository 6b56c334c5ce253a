//! Names of columns in the text of SQL expressions.

use datafusion::sql::sqlparser::ast::{Expr, Ident, visit_expressions, visit_expressions_mut};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The table of a catalog in queries.
pub(super) const TABLE: &str = "catalog";

/// Returns the expression with other names of columns: from old to new. New names have quotation marks.
///
/// A text that is not an expression stays unchanged; filters were parsed before they were applied.
pub(crate) fn renamed(sql: &str, names: &BTreeMap<String, String>) -> String {
    let Some(mut expression) = parsed(sql) else { return sql.to_owned() };
    let mut is_changed = false;
    let mut rename = |ident: &mut Ident| {
        if let Some(new) = names.get(&name_of(ident)) {
            *ident = Ident::with_quote('"', new);
            is_changed = true;
        }
    };
    let _: ControlFlow<()> = visit_expressions_mut(&mut expression, |part| {
        match part {
            Expr::Identifier(ident) => rename(ident),
            Expr::CompoundIdentifier(idents) => {
                let is_of_table = idents.first().is_some_and(|first| name_of(first) == TABLE);
                if let Some(ident) = idents.get_mut(usize::from(is_of_table)) {
                    rename(ident); // after it come fields of a struct
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    if is_changed { expression.to_string() } else { sql.to_owned() }
}

/// Whether there is a query in the expression.
pub(super) fn has_subquery(sql: &str) -> bool {
    let Some(expression) = parsed(sql) else { return false };
    let found = visit_expressions(&expression, |part| match part {
        Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// Whether the expression has a name: `x as y`.
pub(super) fn is_named(sql: &str) -> bool {
    let parser = Parser::new(&GenericDialect {}).try_with_sql(sql);
    parser.and_then(|mut parser| parser.parse_expr_with_alias()).is_ok_and(|parsed| parsed.alias.is_some())
}

fn parsed(sql: &str) -> Option<Expr> {
    let mut parser = Parser::new(&GenericDialect {}).try_with_sql(sql).ok()?;
    let expression = parser.parse_expr().ok()?;
    (parser.peek_token().token == Token::EOF).then_some(expression)
}

/// Returns the name of the column that is meant: in lower case without quotation marks.
fn name_of(ident: &Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_renamed_wherever_they_are_used() {
        let names: BTreeMap<String, String> = [("label", "class"), ("class", "label"), ("Path", "a \"b\"")]
            .map(|(old, new)| (old.into(), new.into()))
            .into();
        for (sql, expected) in [
            ("label < 5", "\"class\" < 5"),
            ("LABEL = class", "\"class\" = \"label\""),
            ("\"LABEL\" = 1 and 'label' = t", "\"LABEL\" = 1 and 'label' = t"),
            ("length(\"Path\") > 3", "length(\"a \"\"b\"\"\") > 3"),
            ("path = label", "path = \"class\""),
            ("catalog.label + label.class", "catalog.\"class\" + \"class\".class"),
            (
                "case class when 1 then label else 0 end in (label)",
                "CASE \"label\" WHEN 1 THEN \"class\" ELSE 0 END IN (\"class\")",
            ),
            ("label between 1 and 2 -- label", "\"class\" BETWEEN 1 AND 2"),
            ("(label < 1) AND (width > 2)", "(\"class\" < 1) AND (width > 2)"),
        ] {
            assert_eq!(renamed(sql, &names), expected);
        }
        for unchanged in ["width  <  3", "not an expression (", "label(1)"] {
            assert_eq!(renamed(unchanged, &names), unchanged);
        }
    }

    #[test]
    fn queries_are_found() {
        for sql in [
            "(select max(label) from catalog)",
            "a in (select b from c)",
            "1 + (select 2)",
            "exists (select 1)",
        ] {
            assert!(has_subquery(sql), "{sql}");
        }
        assert!(!has_subquery("length(text) + (1 + 2)"));
    }
}
