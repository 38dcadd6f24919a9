//! Bounds the constants of a template. The engine computes expressions of literals while it compiles, before any limit of a rendering
//! applies, in branches that never run as well: `'a' * 60000000` would take its memory at once.

use minijinja::Error;
use minijinja::machinery::ast::{BinOpKind, Call, CallArg, Expr, Stmt};
use minijinja::value::{Value, ValueKind};

use super::limits::invalid;

/// Maximum size of all constants of a template, in bytes. Templates write texts of some kilobytes.
const SIZE_MAX: f64 = (64 << 20) as f64;
/// Bytes of an item of a list, or of a value that is written as text.
const ITEM_BYTES: f64 = 24.0;

/// Upper bounds of a constant's size in bytes, and of its absolute value, for a number.
#[derive(Clone, Copy)]
struct Bound {
    size: f64,
    number: f64,
    is_text: bool,
}

/// Fails if the constants of a template could be too large.
pub(super) fn check(template: &Stmt<'_>) -> Result<(), Error> {
    let mut sum = Sum(0.0);
    sum.statement(template);
    match sum.0 > SIZE_MAX {
        true => Err(invalid(format!("its constants would take more than {} MiB", SIZE_MAX as u64 >> 20))),
        false => Ok(()),
    }
}

/// The size of all constants so far.
struct Sum(f64);

impl Sum {
    fn statements(&mut self, of: &[Stmt<'_>]) {
        of.iter().for_each(|s| self.statement(s));
    }

    fn statement(&mut self, of: &Stmt<'_>) {
        match of {
            Stmt::Template(s) => self.statements(&s.children),
            Stmt::EmitExpr(s) => self.expression(&s.expr),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
            Stmt::ForLoop(s) => {
                self.expressions([&s.target, &s.iter].into_iter().chain(&s.filter_expr));
                self.statements(&s.body);
                self.statements(&s.else_body);
            }
            Stmt::IfCond(s) => {
                self.expression(&s.expr);
                self.statements(&s.true_body);
                self.statements(&s.false_body);
            }
            Stmt::WithBlock(s) => {
                self.expressions(s.assignments.iter().flat_map(|(name, value)| [name, value]));
                self.statements(&s.body);
            }
            Stmt::Set(s) => self.expressions([&s.target, &s.expr]),
            Stmt::SetBlock(s) => {
                self.expressions(std::iter::once(&s.target).chain(&s.filter));
                self.statements(&s.body);
            }
            Stmt::AutoEscape(s) => {
                self.expression(&s.enabled);
                self.statements(&s.body);
            }
            Stmt::FilterBlock(s) => {
                self.expression(&s.filter);
                self.statements(&s.body);
            }
            Stmt::Block(s) => self.statements(&s.body),
            Stmt::Import(s) => self.expressions([&s.expr, &s.name]),
            Stmt::FromImport(s) => self.expression(&s.expr),
            Stmt::Extends(s) => self.expression(&s.name),
            Stmt::Include(s) => self.expression(&s.name),
            Stmt::Macro(s) => {
                self.expressions(&s.defaults);
                self.statements(&s.body);
            }
            Stmt::CallBlock(s) => {
                self.call(&s.call);
                self.expressions(&s.macro_decl.defaults);
                self.statements(&s.macro_decl.body);
            }
            Stmt::Do(s) => self.call(&s.call),
        }
    }

    fn expressions<'e, 'a: 'e>(&mut self, of: impl IntoIterator<Item = &'e Expr<'a>>) {
        of.into_iter().for_each(|e| self.expression(e));
    }

    /// Adds the constants of an expression.
    fn expression(&mut self, of: &Expr<'_>) {
        if let Some(bound) = self.bound(of) {
            self.0 += bound.size;
        }
    }

    /// The bounds of all expressions. If one of them is no constant, adds the others and returns `None`.
    fn bounds<'e, 'a: 'e>(&mut self, of: impl IntoIterator<Item = &'e Expr<'a>>) -> Option<Vec<Bound>> {
        let all: Vec<Option<Bound>> = of.into_iter().map(|e| self.bound(e)).collect();
        if all.iter().any(Option::is_none) {
            self.0 += all.iter().flatten().map(|b| b.size).sum::<f64>();
        }
        all.into_iter().collect()
    }

    /// The bounds of a constant. For other expressions `None`: the constants in them are added. Visits each expression once.
    fn bound(&mut self, of: &Expr<'_>) -> Option<Bound> {
        match of {
            Expr::Const(c) => return Some(of_literal(&c.value)),
            Expr::List(e) => return self.bounds(&e.items).map(|all| together(&all)),
            Expr::Tuple(e) => return self.bounds(&e.items).map(|all| together(&all)),
            Expr::Map(e) => return self.bounds(e.keys.iter().chain(&e.values)).map(|all| together(&all)),
            Expr::UnaryOp(e) => return self.bound(&e.expr),
            Expr::BinOp(e) => {
                let all = self.bounds([&e.left, &e.right])?;
                return Some(operation(e.op, all[0], all[1]));
            }
            Expr::Compare(e) => {
                let all = self.bounds(std::iter::once(&e.expr).chain(e.ops.iter().map(|op| &op.expr)))?;
                return Some(Bound { number: 1.0, ..together(&all) });
            }
            Expr::Var(_) => {}
            Expr::Slice(e) => {
                self.expressions(std::iter::once(&e.expr).chain(&e.start).chain(&e.stop).chain(&e.step));
            }
            Expr::IfExpr(e) => {
                self.expressions([&e.test_expr, &e.true_expr].into_iter().chain(&e.false_expr));
            }
            Expr::Filter(e) => {
                self.expressions(&e.expr);
                self.arguments(&e.args);
            }
            Expr::Test(e) => {
                self.expression(&e.expr);
                self.arguments(&e.args);
            }
            Expr::GetAttr(e) => self.expression(&e.expr),
            Expr::GetItem(e) => self.expressions([&e.expr, &e.subscript_expr]),
            Expr::Call(e) => self.call(e),
        }
        None
    }

    fn call(&mut self, of: &Call<'_>) {
        self.expression(&of.expr);
        self.arguments(&of.args);
    }

    fn arguments(&mut self, of: &[CallArg<'_>]) {
        for arg in of {
            match arg {
                CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e) => {
                    self.expression(e);
                }
            }
        }
    }
}

fn of_literal(value: &Value) -> Bound {
    match value.kind() {
        ValueKind::Number => Bound {
            size: 1.0,
            number: f64::try_from(value.clone()).unwrap_or(f64::MAX).abs().min(1e100),
            is_text: false,
        },
        ValueKind::Bool => Bound { size: 1.0, number: 1.0, is_text: false },
        _ => {
            let text = value.as_str();
            Bound { size: 1.0 + text.map_or(0, str::len) as f64, number: 0.0, is_text: text.is_some() }
        }
    }
}

fn together(all: &[Bound]) -> Bound {
    Bound { size: 1.0 + all.iter().map(|b| ITEM_BYTES + b.size).sum::<f64>(), number: 0.0, is_text: false }
}

/// Such that sums and products with it are numbers.
fn finite(x: f64) -> f64 {
    x.min(1e100)
}

fn operation(op: BinOpKind, a: Bound, b: Bound) -> Bound {
    let sum = Bound { size: a.size + b.size, number: a.number + b.number, is_text: a.is_text && b.is_text };
    let written = |of: Bound| if of.is_text { of.size } else { of.size * ITEM_BYTES };
    match op {
        // A text or list is repeated as often as the other side says.
        BinOpKind::Mul => Bound {
            size: sum.size.max(a.size * b.number).max(b.size * a.number),
            number: finite(a.number * b.number),
            is_text: a.is_text || b.is_text,
        },
        BinOpKind::Pow => Bound { number: finite(a.number.max(1.0).powf(b.number)), ..sum },
        BinOpKind::Concat => Bound { size: written(a) + written(b), number: 0.0, is_text: true },
        _ => sum,
    }
}
