"""All SQL of the control plane: tables, statements, migrations. Nothing here commits; services do."""
