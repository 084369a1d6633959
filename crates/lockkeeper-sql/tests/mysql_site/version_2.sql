-- The tables of version 2, with one lock that is held and waited for.
CREATE TABLE IF NOT EXISTS lockkeeper_lock (
    `lock` BINARY(32) NOT NULL PRIMARY KEY,
    name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    counter BIGINT NOT NULL,
    closed BIGINT NOT NULL DEFAULT 0,
    id BINARY(16),
    seq BIGINT,
    expires BIGINT,
    since BIGINT,
    ttl BIGINT,
    weight BIGINT,
    capacity BIGINT,
    host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    pid BIGINT,
    owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_claim (
    `lock` BINARY(32) NOT NULL,
    slot BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    id BINARY(16) NOT NULL,
    held BOOLEAN NOT NULL,
    counter BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    since BIGINT NOT NULL,
    ttl BIGINT NOT NULL,
    weight BIGINT NOT NULL,
    capacity BIGINT NOT NULL,
    host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    pid BIGINT NOT NULL,
    owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    PRIMARY KEY (`lock`, slot)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_store (
    one INT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    cleaned BIGINT NOT NULL,
    upgraded BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;
INSERT IGNORE INTO lockkeeper_store (one, version, cleaned) VALUES (1, 2, 0);

CREATE PROCEDURE lockkeeper_turn_2() SELECT 1;
CREATE PROCEDURE lockkeeper_leave_2() SELECT 1;
CREATE PROCEDURE lockkeeper_gather_2() SELECT 1;
INSERT INTO lockkeeper_lock (`lock`, name, counter, closed)
VALUES (UNHEX(SHA2('old', 256)), 'old', 9999999999999, 9223372036854775807);
INSERT INTO lockkeeper_claim VALUES (UNHEX(SHA2('old', 256)), 0, 7, 'sixteen bytes id', TRUE, 9999999999999,
    9000000000000000000, 0, 1, 1, 1, 'host', 1, NULL, NULL);
INSERT INTO lockkeeper_claim VALUES (UNHEX(SHA2('old', 256)), 9, 9, 'sixteen other id', FALSE, 0,
    9000000000000000000, 0, 1, 1, 1, 'host', 1, NULL, NULL);
