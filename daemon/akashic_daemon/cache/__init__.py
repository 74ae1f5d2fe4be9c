"""What is computed and where: the index over all sessions, matching, accounting, reclamation, explanation. Pure."""
