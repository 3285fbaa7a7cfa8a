"""Programs that use Stillframe."""
