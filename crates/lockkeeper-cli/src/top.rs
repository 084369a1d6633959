//! `lockkeeper top`: the locks that matter now, first, and again every second.

use lockkeeper::spi::Clock;

use crate::exit::{self, Failure, Result};
use crate::live::{self, Frame};
use crate::looking::Top;
use crate::output;
use crate::screen::Screen;
use crate::store::Target;

pub(crate) async fn top(target: &Target, args: &Top) -> Result<u8> {
    let prefix = args.which.prefix()?;
    let store = target.open().await?;
    let frame = Frame { command: "top", store: target.shown(), sort: args.sort };
    let screen = Screen::now();
    if screen.is_terminal && !args.once {
        return live::live(&store, prefix, args.which.every, frame).await;
    }
    loop {
        let seen = live::look(&store, prefix, args.sort).await;
        if let (Err(fault), true) = (&seen, args.once) {
            return Err(target.failure(Failure::new(exit::UNREACHABLE, fault)));
        }
        let lines = frame.lines(&seen, None, screen).join("\n");
        let end = if args.once { "\n" } else { "\n\n" };
        if !output::is_heard(&(lines + end))? || args.once {
            return Ok(0);
        }
        Clock::boot().sleep(args.which.every).await;
    }
}
