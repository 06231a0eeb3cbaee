"""TPC-DS's queries as materialized views: which are incremental, and that they are their queries after changes.

The tables are as small as they can be made, and taken for large ones: how much a plan reads must not depend on it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_materialized import bag

import headrace
from headrace import Database
from headrace.keep import maintenance
from headrace.keep.maintenance import reasons_of
from profiles import SOAK

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not SOAK, reason="makes a hundred views of two million rows")]
_FILE = Path(__file__).parent.parent / "tpcds.sql"
QUERIES = dict(re.findall(r"^-- (q\d+[ab]?)\n([^;]*);", _FILE.read_text(encoding="utf-8"), re.MULTILINE))
KEYS = {
    "date_dim": "d_date_sk",
    "item": "i_item_sk",
    "customer": "c_customer_sk",
    "store": "s_store_sk",
    "customer_address": "ca_address_sk",
    "customer_demographics": "cd_demo_sk",
    "promotion": "p_promo_sk",
    "household_demographics": "hd_demo_sk",
    "income_band": "ib_income_band_sk",
    "time_dim": "t_time_sk",
    "warehouse": "w_warehouse_sk",
    "web_site": "web_site_sk",
    "web_page": "wp_web_page_sk",
    "call_center": "cc_call_center_sk",
    "catalog_page": "cp_catalog_page_sk",
    "reason": "r_reason_sk",
    "ship_mode": "sm_ship_mode_sk",
}
_NOT_INCREMENTAL = """
    q2 q5 q6 q8 q9 q14a q14b q23a q23b q24a q24b q28 q36 q44 q45 q49 q51 q54 q58 q67 q70 q77 q86 q93
"""
NOT_INCREMENTAL = set(_NOT_INCREMENTAL.split())
CHANGES = [
    "DELETE FROM store_sales WHERE ss_ticket_number % 10 = 3",
    "DELETE FROM store_returns WHERE sr_ticket_number % 9 = 4",
    "UPDATE store_sales SET ss_quantity = ss_quantity + 1, ss_sales_price = 2.00 WHERE ss_item_sk % 7 = 1",
    "INSERT INTO catalog_sales SELECT * FROM catalog_sales WHERE cs_order_number % 11 = 3",
    "UPDATE web_sales SET ws_ext_sales_price = 9.50, ws_bill_customer_sk = 5 WHERE ws_order_number % 13 = 1",
    "UPDATE item SET i_category = 'Books', i_current_price = 40.00 WHERE i_item_sk % 5 = 2",
    "UPDATE customer_address SET ca_state = 'TN', ca_gmt_offset = -5 WHERE ca_address_sk % 4 = 1",
    "UPDATE customer SET c_current_addr_sk = 7, c_birth_month = 1 WHERE c_customer_sk % 6 = 2",
    "UPDATE date_dim SET d_year = 2000, d_moy = 11 WHERE d_year = 2001 AND d_dom = 3",
    "DELETE FROM web_returns WHERE wr_order_number % 3 = 0",
    "UPDATE store SET s_state = 'TN', s_gmt_offset = -5",
    "DELETE FROM catalog_returns",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tpcds_followed")
    program = str(Path(sys.executable).with_name("tpcgen-cli"))
    command = [program, "tpcds", "parquet", "-s", "0.01", "--output-dir", str(found)]
    subprocess.run(command, check=True, capture_output=True)
    return found


@pytest.fixture
def db(folder: Path) -> Iterator[Database]:
    with headrace.connect(None, durability="none") as db:
        for file in sorted(folder.rglob("*.parquet")):
            name = file.stem
            db.sql(f"CREATE TABLE there_{name} USING parquet LOCATION '{file}'")
            described = [row[:2] for row in db.sql(f"DESCRIBE there_{name}").rows()]
            columns = ", ".join(f"{column} {type}" for column, type in described if not column.startswith("#"))
            key = f", PRIMARY KEY ({KEYS[name]})" if name in KEYS else ""
            db.sql(f"CREATE TABLE {name} ({columns}{key})")
            db.copy(name, file)
        yield db


def made(db: Database, name: str) -> None:
    count = len(db.sql(QUERIES[name]).arrow().column_names)
    db.sql(f"CREATE MATERIALIZED VIEW {name} ({', '.join(f'c{i}' for i in range(count))}) AS {QUERIES[name]}")


def test_all_are_accepted_and_most_are_incremental(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "FEW", 0)
    found = set[str]()
    for name in QUERIES:
        made(db, name)
        with db._runtime.store.read() as snapshot:
            reasons = reasons_of(db._runtime, snapshot, db._keeper.get(name).layers)
        if any(reasons.keys()):
            found.add(name)
        db.sql(f"DROP VIEW {name}")
    assert found == NOT_INCREMENTAL
    assert (len(QUERIES), len(found)) == (103, 24)


@pytest.mark.parametrize("part", range(8))
def test_oracle_views_are_their_queries_after_every_change(db: Database, part: int) -> None:
    names = list(QUERIES)[part::8]
    for name in names:
        made(db, name)
    for change in ["SELECT 1", *CHANGES]:
        db.sql(change)
        for name in names:
            found, wanted = (bag(db.sql(text).rows()) for text in (f"SELECT * FROM {name}", QUERIES[name]))
            assert found == wanted, (name, change)
