"""Studies, trials, leases, measurements, workers, events and tokens.

Revision: 20261201_1
Down revision: None
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261201_1"
down_revision = None
branch_labels = None
depends_on = None

DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "ns_studies",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("spec", DOCUMENT, nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("recommendation", DOCUMENT, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('draft', 'running', 'paused', 'draining', 'completed', 'cancelled', 'failed')",
            name=op.f("ck_ns_studies_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ns_studies")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_ns_studies_idempotency_key")),
        sa.UniqueConstraint("name", name=op.f("uq_ns_studies_name")),
    )
    op.create_index(
        op.f("ix_ns_studies_state_created_at"), "ns_studies", ["state", "created_at"], unique=False
    )
    op.create_table(
        "ns_tokens",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "scope IN ('viewer', 'operator', 'worker', 'admin')", name=op.f("ck_ns_tokens_scope")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_ns_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_ns_tokens_hash")),
    )
    op.create_table(
        "ns_workers",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("description", DOCUMENT, nullable=False),
        sa.Column("registered_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.CheckConstraint("state IN ('active', 'quarantined')", name=op.f("ck_ns_workers_state")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_ns_workers")),
    )
    op.create_table(
        "ns_events",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("study_id", sa.String(length=32), nullable=True),
        sa.Column("kind", sa.String(length=50), nullable=False),
        sa.Column("data", DOCUMENT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["ns_studies.id"], name=op.f("fk_ns_events_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ns_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_ns_events_study_id_id"), "ns_events", ["study_id", "id"], unique=False)
    op.create_table(
        "ns_leases",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=True),
        sa.Column("partial", DOCUMENT, nullable=True),
        sa.Column("elapsed_s", sa.Double(), nullable=True),
        sa.Column("report_hash", sa.String(length=64), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('reserved', 'held', 'reporting', 'reported', 'expired', 'released')",
            name=op.f("ck_ns_leases_state"),
        ),
        sa.ForeignKeyConstraint(
            ["study_id"], ["ns_studies.id"], name=op.f("fk_ns_leases_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ns_leases")),
    )
    op.create_index(op.f("ix_ns_leases_state_expires_at"), "ns_leases", ["state", "expires_at"], unique=False)
    op.create_index(
        op.f("ix_ns_leases_study_id_trial_number"), "ns_leases", ["study_id", "trial_number"], unique=False
    )
    op.create_index(
        "uq_ns_leases_one_holder",
        "ns_leases",
        ["study_id", "trial_number"],
        unique=True,
        sqlite_where=sa.text("state IN ('held', 'reporting')"),
        postgresql_where=sa.text("state IN ('held', 'reporting')"),
    )
    op.create_table(
        "ns_trials",
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("origin", sa.String(length=100), nullable=False),
        sa.Column("args", DOCUMENT, nullable=False),
        sa.Column("env", DOCUMENT, nullable=False),
        sa.Column("knobs", DOCUMENT, nullable=False),
        sa.Column("attempts_used", sa.Integer(), server_default="0", nullable=False),
        sa.Column("outcome", DOCUMENT, nullable=True),
        sa.Column("told", sa.Boolean(), server_default=sa.text("(false)"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('waiting', 'running', 'completed', 'infeasible', 'pruned_early', 'failed')",
            name=op.f("ck_ns_trials_state"),
        ),
        sa.CheckConstraint(
            "(outcome IS NULL) = (ended_at IS NULL)", name=op.f("ck_ns_trials_ended_with_an_outcome")
        ),
        sa.ForeignKeyConstraint(
            ["study_id"], ["ns_studies.id"], name=op.f("fk_ns_trials_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("study_id", "number", name=op.f("pk_ns_trials")),
    )
    op.create_index(
        op.f("ix_ns_trials_study_id_state_number"), "ns_trials", ["study_id", "state", "number"], unique=False
    )
    op.create_table(
        "ns_measurements",
        sa.Column("lease_id", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=False),
        sa.Column("measurement", DOCUMENT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["ns_leases.id"], name=op.f("fk_ns_measurements_lease_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["study_id"], ["ns_studies.id"], name=op.f("fk_ns_measurements_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("lease_id", name=op.f("pk_ns_measurements")),
    )
    op.create_index(
        op.f("ix_ns_measurements_study_id_trial_number"),
        "ns_measurements",
        ["study_id", "trial_number"],
        unique=False,
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_ns_measurements_study_id_trial_number"), table_name="ns_measurements")
    op.drop_table("ns_measurements")
    op.drop_index(op.f("ix_ns_trials_study_id_state_number"), table_name="ns_trials")
    op.drop_table("ns_trials")
    op.drop_index(
        "uq_ns_leases_one_holder",
        table_name="ns_leases",
        sqlite_where=sa.text("state IN ('held', 'reporting')"),
        postgresql_where=sa.text("state IN ('held', 'reporting')"),
    )
    op.drop_index(op.f("ix_ns_leases_study_id_trial_number"), table_name="ns_leases")
    op.drop_index(op.f("ix_ns_leases_state_expires_at"), table_name="ns_leases")
    op.drop_table("ns_leases")
    op.drop_index(op.f("ix_ns_events_study_id_id"), table_name="ns_events")
    op.drop_table("ns_events")
    op.drop_table("ns_workers")
    op.drop_table("ns_tokens")
    op.drop_index(op.f("ix_ns_studies_state_created_at"), table_name="ns_studies")
    op.drop_table("ns_studies")
