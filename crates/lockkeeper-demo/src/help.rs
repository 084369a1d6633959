//! The part of `--help` that teaches.

pub(crate) const FLASH_SALE: &str = "\
Examples:
  lockkeeper demo flash-sale
  lockkeeper demo flash-sale --instances 8 --buyers 5000 --stock 500
  lockkeeper demo flash-sale --strategy no-lock --strategy lockkeeper
  lockkeeper --url redis://127.0.0.1 demo flash-sale --db mysql://shop@127.0.0.1/shop

Without --url and --db everything happens in a temporary folder: an SQLite file for the
stock, and one for the locks. --url names another store of locks, with any scheme that
several processes can share; --db another database. In it two tables with new names are
made for each strategy and removed afterwards; your own tables and locks are not touched.
Settings files are not read. What was sold is read from the database afterwards.

WAIT is the time from opening the shop to a buyer's answer; LOCK CMDS and DB CMDS are
commands to the store of locks and statements to the database for each order.
Exit codes: 0 shown, 1 a strategy that promises not to oversell did, 64 bad usage,
69 the store of locks or the database cannot be used.";

pub(crate) const JSON: &str = "\
Print JSON, one object for each strategy. Its shape:
https://github.com/lockkeeper/lockkeeper/blob/main/docs/guides/flash-sale.md#json";
