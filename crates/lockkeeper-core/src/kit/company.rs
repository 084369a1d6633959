//! Company: requests that one caller makes at the same moment, which a lane then sends as one.

use std::cell::RefCell;

type Start = Box<dyn FnOnce()>;

thread_local! {
    /// What begins to send when everybody has asked; `None` outside of company.
    static COMPANY: RefCell<Option<Vec<Start>>> = const { RefCell::new(None) };
}

/// Run what makes several requests. A lane sends nothing before it has ended.
pub(crate) fn in_company<T>(requests: impl FnOnce() -> T) -> T {
    let _end = End(COMPANY.replace(Some(Vec::new())));
    requests()
}

/// Whether others are about to ask, too.
pub(super) fn is_here() -> bool {
    COMPANY.with_borrow(Option::is_some)
}

/// Begin to send when all have asked: now, where nobody else is about to.
pub(super) fn when_all_have_asked(start: impl FnOnce() + 'static) {
    if !is_here() {
        return start();
    }
    COMPANY.with_borrow_mut(|it| it.get_or_insert_default().push(Box::new(start)));
}

/// The end of company, also by a panic: whoever has asked is served. Holds the company around it.
struct End(Option<Vec<Start>>);

impl Drop for End {
    fn drop(&mut self) {
        let starts = COMPANY.replace(self.0.take());
        starts.into_iter().flatten().for_each(|it| it());
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn nothing_begins_before_all_have_asked() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let note = |what: &'static str| {
            let order = order.clone();
            move || order.borrow_mut().push(what)
        };
        when_all_have_asked(note("alone"));
        in_company(|| {
            when_all_have_asked(note("first"));
            in_company(|| when_all_have_asked(note("inner")));
            when_all_have_asked(note("second"));
            note("asked")();
        });
        assert_eq!(*order.borrow(), ["alone", "inner", "asked", "first", "second"]);
        assert!(!is_here());
    }
}
