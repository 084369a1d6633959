//! `lockkeeper serve` as a process, asked over TCP.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use super::{text, within};

/// It speaks HTTP, and is ended by whoever started it.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) stderr: BufReader<std::process::ChildStderr>,
    pub(crate) address: String,
    /// By which name it is called, if not by its address.
    pub(crate) called: String,
    pub(crate) token: String,
    /// What it has said so far.
    pub(crate) said: String,
}

impl Serving {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (address, called, token, said) = (String::new(), String::new(), String::new(), String::new());
        Serving { child, stderr, address, called, token, said }
    }

    /// With the random token that it tells.
    pub(crate) fn with_its_token(command: &mut Command) -> Self {
        let mut it = Serving::start(command);
        it.address = it.told("listening on http://");
        it.token = it.told("the token is ");
        it
    }

    /// The rest of the line that has these words in it.
    pub(crate) fn told(&mut self, words: &str) -> String {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(self.stderr.read_line(&mut line).unwrap() > 0, "it ended without saying {words}");
            self.said.push_str(&line);
        }
        line.split_once(words).unwrap().1.trim().to_owned()
    }

    /// The first bytes of the answer, and the connection.
    pub(crate) fn ask(&self, method: &str, path: &str, enough: &'static str) -> (String, TcpStream) {
        self.ask_with(method, path, "Content-Length: 0\r\n\r\n", enough)
    }

    /// The same with the rest of the request: more headers, and a body.
    pub(crate) fn ask_with(
        &self,
        method: &str,
        path: &str,
        rest: &str,
        enough: &'static str,
    ) -> (String, TcpStream) {
        let (address, token) = (self.address.clone(), self.token.clone());
        let host = if self.called.is_empty() { &address } else { &self.called };
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n{rest}");
        within("the answer", move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            let mut bytes = [0; 4096];
            while !answer.contains(enough) {
                let read = stream.read(&mut bytes).unwrap();
                assert!(read > 0, "the answer ended: {answer}");
                answer.push_str(&text(&bytes[..read]));
            }
            (answer, stream)
        })
    }
}
