"""The recipes of the page on the outbox, with the real SQLAlchemy and Django."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from supervisor.contrib.outbox.databases import opened
from supervisor.contrib.outbox.relay import Relay
from supervisor.engine.client.sync_client import Client
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "supervisor/docs/outbox.md"


def recipe(library):
    return next(block for block in blocks(PAGE, "python") if f"from {library}" in block)


@pytest.fixture
def relayed(server, namespace, tmp_path):
    """Relay what lies in app.db, and return the data of the jobs."""
    path = tmp_path / "app.db"
    path.touch()
    with closing(opened(f"sqlite:///{path}")) as database, Client(server.url, namespace) as client:
        database.create()
        relay = Relay(database, client)

        def relayed():
            while relay.turn().was_busy:
                pass
            return [job.data for job in client.queue("mail").jobs("waiting")]

        yield relayed


def test_sqlalchemy_session_puts_with_its_commit(relayed, tmp_path):
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed here")
    from sqlalchemy import orm

    recipes = {}
    exec(recipe("sqlalchemy"), recipes)
    base = orm.declarative_base()
    order = type(
        "Order",
        (base,),
        {"__tablename__": "orders", "id": sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)},
    )
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/app.db")
    base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        recipes["put"](session, "mail", "mail.receipt", "rolled back")
        session.rollback()
        assert relayed() == []
        recipes["place_order"](session, order())
    engine.dispose()
    assert relayed() == [{"order": 1}]


def test_django_transaction_puts_with_its_commit(relayed, tmp_path):
    pytest.importorskip("django", reason="Django is not installed here")
    (tmp_path / "recipes.py").write_text(recipe("django.db import connection"))
    code = """
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "app.db"}})
import django
django.setup()
from django.db import transaction
import recipes
class Order:
    pk = 1
    def save(self): pass
try:
    with transaction.atomic():
        recipes.place_order(Order())
        raise KeyError
except KeyError:
    Order.pk = 2
recipes.place_order(Order())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=60)
    assert relayed() == [{"order": 2}]


def test_statements_of_the_package_make_the_tables(tmp_path):
    from supervisor.contrib.outbox import SQLITE

    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        for statement in SQLITE:
            connection.execute(statement)
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'leasehold_outbox%'").fetchall()
    assert {"leasehold_outbox", "leasehold_outbox_name"} <= {name for (name,) in tables}
