//! A headless Chromium, driven by Debian's `chromium-driver`.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_core::Clock;
use thirtyfour::prelude::*;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::common::{HANG, Server, TOKEN, until, within};

pub(crate) struct Browser {
    pub(crate) driver: WebDriver,
    _service: Child,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let mut service = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("chromedriver is missing: apt-get install chromium chromium-driver");
        let mut lines = BufReader::new(service.stdout.take().unwrap()).lines();
        let port = within("the driver tells its port", async {
            loop {
                let line = lines.next_line().await.unwrap().expect("the driver runs");
                if let Some((_, port)) = line.split_once("successfully on port ") {
                    return port.trim_end_matches('.').parse::<u16>().unwrap();
                }
            }
        })
        .await;
        let profile = tempfile::TempDir::new().unwrap();
        let mut wanted = DesiredCapabilities::chrome();
        let folder = format!("--user-data-dir={}", profile.path().display());
        // No sandbox: the tests may run as root. No /dev/shm: it is small in containers.
        for arg in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", &folder] {
            wanted.add_arg(arg).unwrap();
        }
        let driver =
            within("a browser", WebDriver::new(format!("http://127.0.0.1:{port}"), wanted)).await.unwrap();
        driver.set_window_rect(0, 0, 1280, 900).await.unwrap();
        Browser { driver, _service: service, _profile: profile }
    }

    /// Open a page, with the token in the part of the address that is not sent.
    pub(crate) async fn enter(&self, server: &Server) {
        let driver = &self.driver;
        driver.goto(format!("{}/#token={TOKEN}", server.address())).await.unwrap();
        self.shows("h1", "Overview").await;
        let address = driver.current_url().await.unwrap();
        assert!(!address.as_str().contains(TOKEN), "{address}");
    }

    pub(crate) async fn open(&self, server: &Server, path: &str) {
        self.driver.goto(format!("{}{path}", server.address())).await.unwrap();
    }

    /// What a script answers.
    pub(crate) async fn js(&self, script: &str) -> serde_json::Value {
        self.driver.execute(script, Vec::new()).await.unwrap().json().clone()
    }

    pub(crate) async fn text(&self, css: &str) -> String {
        let script = format!("const it = document.querySelector({css:?}); return it ? it.textContent : '';");
        self.js(&script).await.as_str().unwrap_or_default().to_owned()
    }

    /// Wait until a part of the page has this text in it.
    pub(crate) async fn shows(&self, css: &str, text: &str) {
        until(&format!("{css} shows {text}"), || async { self.text(css).await.contains(text) }).await;
    }

    /// Wait until it has not.
    pub(crate) async fn hides(&self, css: &str, text: &str) {
        until(&format!("{css} hides {text}"), || async { !self.text(css).await.contains(text) }).await;
    }

    /// A page that is live may replace what was found before it is clicked: then it is looked for again.
    pub(crate) async fn click(&self, css: &str) {
        until(&format!("{css} can be clicked"), || async {
            match self.driver.find(By::Css(css)).await {
                Ok(found) => found.click().await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
    }

    /// Press a key where the focus is, after it was put there.
    pub(crate) async fn press(&self, css: &str, key: &Key) {
        until(&format!("{css} hears a key"), || async {
            self.js(&format!("document.querySelector({css:?})?.focus()")).await;
            match self.driver.active_element().await {
                Ok(focused) => focused.send_keys("" + key.clone()).await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
    }

    /// Press a key on what leads to a page with this text in it. A page that is live may replace what has the focus before it
    /// hears: then once more.
    pub(crate) async fn press_for(&self, css: &str, key: &Key, (shown, text): (&str, &str)) {
        until(&format!("{css} leads to {text}"), || async {
            if !self.text(css).await.contains(text) {
                return self.text(shown).await.contains(text);
            }
            self.press(css, key).await;
            let clock = Clock::boot();
            let led = async {
                while !self.text(shown).await.contains(text) {
                    clock.sleep(Duration::from_millis(20)).await;
                }
            };
            clock.within(clock.now().after(Duration::from_secs(5)), std::pin::pin!(led)).await.is_some()
        })
        .await;
    }

    pub(crate) async fn type_into(&self, css: &str, text: &str) {
        self.driver.find(By::Css(css)).await.unwrap().send_keys(text).await.unwrap();
    }

    /// What broke the policy of the page so far, in the order it was blocked; what came before this call is told, too.
    ///
    /// The observer hands what it has to its callback and forgets it, so it is kept there. Reports come in tasks of
    /// their own: one that is planted last is a mark, and all that happened before it have come by then.
    pub(crate) async fn violations(&self) -> Vec<String> {
        let script = "const done = arguments[arguments.length - 1]; \
             const all = [], mark = 'https://mark.invalid/' + Math.random(); \
             const seen = new ReportingObserver((some) => { \
               all.push(...some.map((it) => it.body.blockedURL || 'inline')); \
               if (all.includes(mark)) { seen.disconnect(); done(all.filter((it) => it.indexOf('https://mark.invalid/') !== 0)); } \
             }, {types: ['csp-violation'], buffered: true}); \
             seen.observe(); fetch(mark).catch(() => {});";
        let seen = within("the reports of the page", self.driver.execute_async(script, Vec::new())).await;
        seen.unwrap().convert().unwrap()
    }

    /// A picture for people, below the folder of build results.
    pub(crate) async fn picture(&self, name: &str) {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console");
        std::fs::create_dir_all(&folder).unwrap();
        self.driver.screenshot(&folder.join(format!("{name}.png"))).await.unwrap();
    }

    pub(crate) async fn ends(self) {
        let clock = Clock::boot();
        let until = clock.now().after(HANG);
        // What does not end is killed with its service.
        clock.within(until, Box::pin(self.driver.quit())).await;
    }
}
