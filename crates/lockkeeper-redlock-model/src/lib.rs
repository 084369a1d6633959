//! A model of Redlock, checked in every order of events. There is nothing here but the tests.
