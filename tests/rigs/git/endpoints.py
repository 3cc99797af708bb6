"""Endpoints of forges' REST, by catalogue entry: what each level of `api` opens and none does.

In all tables a method stands before its paths. R is the granted repository, acme/widgets, and / the
root of the forge's REST.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.rigs.inject.shelf import pairs


class Kind(NamedTuple):
    """A catalogue entry: where its REST is, and which of the tables below holds for it."""

    table: str
    host: str
    root: str
    repository: str
    more: str = ""


KINDS = {
    "github": Kind("github", "api.github.com", "", "/repos/acme/widgets"),
    "github-enterprise": Kind(
        "github", "github.corp.example", "/api/v3", "/repos/acme/widgets",
        'hosts = ["github.corp.example"]',
    ),
    "ghe-cloud": Kind(
        "github", "api.acme.ghe.com", "", "/repos/acme/widgets",
        'hosts = ["acme.ghe.com", "api.acme.ghe.com"]',
    ),
    "gitlab": Kind("gitlab", "gitlab.com", "/api/v4", "/projects/acme%2Fwidgets"),
    "gitea": Kind(
        "gitea", "git.corp.example", "/api/v1", "/repos/acme/widgets",
        'hosts = ["git.corp.example"]',
    ),
    "forgejo": Kind(
        "gitea", "git.corp.example", "/api/v1", "/repos/acme/widgets",
        'hosts = ["git.corp.example"]',
    ),
    "codeberg": Kind("gitea", "codeberg.org", "/api/v1", "/repos/acme/widgets"),
}  # fmt: skip

READ = {
    "github": """
        GET / /user /rate_limit /meta R R/contents R/contents/src/deep/file.py
            R/contents/src%2Ffile.py R/readme R/readme/docs R/license R/languages R/topics
            R/contributors R/tags R/branches R/branches/agent/x R/branches/agent%2Fx R/commits
            R/commits/main R/commits/main/status R/commits/main/check-runs
            R/commits/main/check-suites R/commits/main/pulls R/comments/1 R/compare/main...agent/x
            R/compare/main...agent%2Fx R/git/blobs/0123 R/git/commits/0123 R/git/tags/0123
            R/git/trees/main R/git/ref/heads/main R/git/refs R/git/refs/heads/main
            R/git/matching-refs/heads/agent R/tarball/main R/zipball R/issues R/issues/1
            R/issues/1/comments R/issues/1/events R/issues/1/labels R/issues/1/reactions
            R/issues/comments/5 R/issues/events/5 R/assignees R/labels R/labels/bug R/milestones/1
            R/pulls R/pulls/1 R/pulls/1/files R/pulls/1/commits R/pulls/1/comments R/pulls/1/reviews
            R/pulls/1/merge R/pulls/comments/5 R/check-runs/1 R/check-runs/1/annotations
            R/check-suites/1/check-runs R/statuses/0123 R/rules/branches/main R/actions/workflows
            R/actions/workflows/ci.yml/runs R/actions/runs R/actions/runs/1 R/actions/runs/1/jobs
            R/actions/runs/1/logs R/actions/runs/1/artifacts R/actions/jobs/1 R/actions/jobs/1/logs
            R/actions/artifacts/1/zip R/releases R/releases/latest R/releases/tags/v1
            R/releases/assets/1 /search/issues /search/code
        HEAD R
    """,
    "gitlab": """
        GET /user /version /metadata R R/repository/tree R/repository/archive.tar.gz
            R/repository/files/src%2Ffile.py/raw R/repository/branches/agent%2Fx
            R/repository/commits/main/statuses R/repository/compare R/languages R/labels
            R/milestones/1 R/issues R/issues/1 R/issues/1/notes R/issues/1/discussions
            R/issues/1/participants R/merge_requests R/merge_requests/1 R/merge_requests/1/commits
            R/merge_requests/1/changes R/merge_requests/1/diffs R/merge_requests/1/raw_diffs
            R/merge_requests/1/versions/2 R/merge_requests/1/notes/2 R/merge_requests/1/discussions
            R/merge_requests/1/pipelines R/merge_requests/1/approvals
            R/merge_requests/1/approval_state R/merge_requests/1/participants
            R/merge_requests/1/reviewers R/pipelines R/pipelines/1 R/pipelines/latest
            R/pipelines/1/jobs R/pipelines/1/bridges R/pipelines/1/test_report
            R/pipelines/1/test_report_summary R/jobs R/jobs/1 R/jobs/1/trace R/jobs/1/artifacts
            R/jobs/artifacts/main/download R/releases R/releases/v1 R/packages
    """,
    "gitea": """
        GET /version /user R R/contents R/contents/src/file.py R/raw/src/file.py
            R/media/src/file.bin R/archive/main.tar.gz R/branches/agent%2Fx R/tags R/commits
            R/commits/main/status R/compare/main...agent/x R/git/blobs/0123 R/git/commits/0123
            R/git/notes/0123 R/git/refs R/git/tags/0123 R/git/trees/main R/languages R/topics
            R/issues R/issues/1 R/issues/1/comments R/issues/1/labels R/issues/1/reactions
            R/issues/1/assets/2 R/issues/comments/5 R/assignees R/labels R/milestones/1 R/pulls
            R/pulls/1 R/pulls/1.diff R/pulls/1/files R/pulls/1/reviews R/statuses/0123
            R/actions/tasks R/actions/runs/1 R/actions/jobs/1/logs R/actions/artifacts
            R/releases/latest
    """,
}

WRITE = {
    "github": """
        POST R/pulls R/pulls/1/comments R/pulls/1/comments/5/replies R/pulls/1/requested_reviewers
            R/issues/1/comments R/pulls/1/reviews R/issues
        PATCH R/pulls/1 R/issues/1
    """,
    "gitlab": """
        POST R/merge_requests R/merge_requests/1/notes R/issues R/issues/1/notes
        PUT R/merge_requests/1 R/issues/1
    """,
    "gitea": """
        POST R/pulls R/pulls/1/requested_reviewers R/issues/1/comments
        PATCH R/pulls/1
    """,
}

DANGEROUS = {
    "github": """
        PUT R/contents/.github/workflows/x.yml R/pulls/1/merge R/pulls/1/update-branch
            R/branches/main/protection R/rulesets/1 R/topics R/import
            R/actions/workflows/ci.yml/enable R/actions/permissions R/actions/secrets/S
            R/environments/prod R/environments/prod/variables/V R/collaborators/mallory R/pages
            R/lfs R/interaction-limits R/pulls/1/reviews/2 R/pulls/1/reviews/2/dismissals
            /teams/1/members/mallory
        POST R/contents/x R/git/refs R/git/refs/heads/main R/git/blobs R/git/trees R/git/commits
            R/git/tags R/merges R/merge-upstream R/branches/main/rename
            R/branches/main/protection/enforce_admins R/rulesets R R/releases
            R/releases/generate-notes R/tags/protection R/forks R/generate R/transfer R/dispatches
            R/actions/workflows/ci.yml/dispatches R/actions/runs/1/rerun R/actions/runs/1/approve
            R/actions/runs/1/pending_deployments R/actions/variables
            R/actions/runners/registration-token R/actions/runners/generate-jitconfig R/codespaces
            R/pulls/1/codespaces R/keys R/hooks R/pages R/deployments R/deployments/1/statuses
            R/statuses/0123 R/check-runs R/check-suites/1/rerequest R/code-scanning/sarifs
            R/attestations R/autolinks R/pulls/1/reviews/2/events
            /app/installations/1/access_tokens /app-manifests/c/conversions /applications/c/token
            /credentials/revoke /user/keys /user/gpg_keys /user/repos /user/codespaces /user /gists
            /orgs/acme/repos
        DELETE R/contents/x R/git/refs/heads/main R/branches/main/protection R R/releases/1
            R/actions/runs/1/logs R/vulnerability-alerts R/automated-security-fixes
            R/private-vulnerability-reporting /installation/token
        PATCH R/git/refs/heads/main R R/releases/1 R/actions/variables/V R/check-runs/1
            R/properties/values /user
        GET /search/users /search/repositories /search/commits
            R/actions/secrets R/actions/secrets/public-key R/actions/organization-secrets
            R/actions/variables R/actions/runners R/environments R/environments/prod/secrets
            R/dependabot/secrets R/codespaces R/secret-scanning/alerts R/keys R/hooks
            R/hooks/1/deliveries R/invitations R/compare/main...mallory:main
            R/compare/mallory:vault:main...main R/compare/main...mallory%3Amain
            R/compare/main...mallory:agent/x R/compare/main...mallory:agent%2Fx /repositories/1
            /repositories/1/contents/x /authorizations /copilot_internal/v2/token /user/keys
            /user/emails /user/repos /user/installations /gists /orgs/acme/actions/secrets
            /organizations/1/repos /enterprises/acme/actions/runners
            /scim/v2/organizations/acme/Users
    """,
    "gitlab": """
        GET R/pipelines/1/variables R/variables R/secure_files R/triggers R/pipeline_schedules
            R/hooks R/services/jira R/access_tokens R/runners R/cluster_agents/1/tokens
            R/terraform/state/x R/feature_flags R/pages/domains R/export/download R/approval_rules
            /groups/1/variables /personal_access_tokens /user/keys /applications /job
            /admin/ci/variables /audit_events /projects/42 /projects/42/variables
        PUT R R/repository/files/.gitlab-ci.yml R/repository/submodules/x R/merge_requests/1/merge
            R/merge_requests/1/rebase R/merge_requests/1/reset_approvals /suggestions/1/apply
            R/integrations/slack R/transfer R/packages/generic/x/1/y R/push_rule
            /application/settings /projects/42
        POST R R/archive R/restore R/housekeeping R/repository/commits R/repository/files/x
            R/repository/branches R/repository/tags R/repository/commits/0123/cherry_pick
            R/repository/commits/0123/revert R/repository/changelog
            R/merge_requests/1/cancel_merge_when_pipeline_succeeds R/merge_requests/1/approve
            R/merge_requests/1/unapprove R/merge_requests/1/approvals
            R/merge_requests/1/approval_rules R/merge_requests/1/pipelines
            R/merge_requests/1/draft_notes R/merge_requests/1/draft_notes/bulk_publish
            R/merge_trains/merge_requests/1 R/pipeline R/pipelines/1/retry R/jobs/1/play R/variables
            R/triggers R/trigger/pipeline R/ref/main/trigger/pipeline R/hooks R/remote_mirrors
            R/mirror/pull R/access_tokens R/deploy_tokens R/deploy_keys
            R/runners/reset_registration_token R/environments R/deployments R/statuses/0123
            R/releases R/members R/invitations R/share R/fork R/uploads R/snippets
            R/protected_branches R/protected_tags R/approvals /projects /projects/user/1
            /projects/import /projects/remote-import /import/github /bulk_imports /snippets
            /groups/1/access_tokens /groups /personal_access_tokens/self/rotate
            /user/personal_access_tokens /users/1/impersonation_tokens /users /user/runners /runners
            /hooks /code_suggestions/direct_access /internal/allowed /projects/42/repository/commits
        DELETE R R/repository/files/x R/repository/branches/main R/pages R/protected_branches/main
        PATCH R/job_token_scope
    """,
    "gitea": """
        POST R R/contents R/contents/x R/diffpatch R/branches R/branch_protections R/tag_protections
            R/tags R/git/notes/0123 R/git/refs R/merge-upstream R/sync_fork R/mirror-sync
            R/push_mirrors R/push_mirrors-sync R/pulls/1/merge R/pulls/1/update R/pulls/1/reviews
            R/pulls/1/reviews/2 R/pulls/1/reviews/2/dismissals R/statuses/0123 R/releases R/forks
            R/generate R/transfer R/transfer/accept R/wiki/new R/avatar R/keys R/hooks
            R/actions/variables/V R/actions/workflows/ci.yml/dispatches /users/acme/tokens
            /user/keys /user/repos /user/applications/oauth2 /repos/migrate /orgs /orgs/acme/repos
            /admin/users /activitypub/user-id/1/inbox
        PATCH R R/branches/main R/releases/1 R/hooks/git/pre-receive
        DELETE R R/contents/x R/branches/main R/tags/v1 R/pulls/1/merge R/releases/tags/v1
            /packages/acme/generic/x/1
        PUT R/contents/.gitea/workflows/x.yml R/topics R/actions/secrets/S R/collaborators/mallory
            R/teams/t
        GET R/branch_protections R/keys R/hooks R/hooks/git R/actions/secrets R/actions/variables
            R/actions/runners/registration-token R/compare/main...mallory:main
            R/compare/main...mallory/vault:main R/compare/main...mallory%2Fvault:main
            /users/acme/tokens /user/emails /user/repos /user/actions/runners/registration-token
            /repositories/1 /orgs/acme/actions/secrets /admin/users /teams/1
    """,
}
"""Refused at every level, and under a policy's broad `allow` by a guard."""

UNLISTED = {
    "github": """
        GET R/issues/1/timeline R/issues/1/sub_issues R/issues/1/parent
            R/issues/1/dependencies/blocked_by R/forks R/traffic/clones R/deployments /users/mallory
            /notifications /events /repos/acme /repos/acme/vault
            /repos/acme/vault/contents/x /repos/acme/widgets.git /repos/acme/widgets.wiki/contents/x
            /repos/mallory/widgets/pulls
        POST R/issues/1/labels R/issues/1/assignees /repos/acme/vault/pulls
            /repos/acme/vault/issues/1/comments
        PATCH R/issues/comments/5 R/pulls/comments/5
        PUT R/issues/1/labels R/issues/1/lock
        DELETE R/issues/comments/5 R/pulls/1/requested_reviewers
    """,
    "gitlab": """
        POST R/merge_requests/1/discussions R/merge_requests/1/todo /projects/42/merge_requests
            /projects/acme%2Fvault/merge_requests
        DELETE R/merge_requests/1
        GET R/issues/1/links R/issues/1/related_merge_requests R/issues/1/closed_by
            R/merge_requests/1/closes_issues R/merge_requests/1/related_issues R/search /projects
            /groups /search /users/1 /projects/42/issues /projects/acme%2Fvault/issues
            /projects/acme%2Fwidgets%2Fsub/issues /projects/acme%2Fvault/repository/files/x/raw
            /projects/acme/vault/issues
    """,
    "gitea": """
        POST R/issues R/issues/1/labels R/issues/1/dependencies /repos/acme/vault/pulls
        PATCH R/issues/1 R/issues/comments/5
        DELETE R/issues/1
        PUT R/issues/1/labels
        GET R/issues/1/timeline R/issues/1/dependencies R/issues/1/blocks R/forks R/signing-key.gpg
            /users/search /repos/search /repos/issues/search /repos/acme/vault
            /repos/acme/vault/contents/x /repos/mallory/widgets/pulls
    """,
}
"""Harmless in the right hands, or another repository's: refused because no rule names it."""

MALFORMED = {
    "github": """
        GET R/../vault R/%2e%2e/vault/contents/x R/contents/..%2F..%2F..%2Fvault R//contents
            R/contents/x;y R/contents/%252e%252e R/contents/x%5Cy R/contents/x%00
    """,
    "gitlab": """
        GET R/../acme%2Fvault/issues /projects/acme%2Fwidgets%2F..%2Fvault/repository/tree
            R/repository/files/..%2F..%2Fx/raw /projects/acme%252Fvault/issues R//issues
    """,
    "gitea": """
        GET R/../vault R/contents/..%2F..%2Fvault R//pulls R/contents/%252e%252e
    """,
}

Row = tuple[str, str, str]


def rows(table: dict[str, str]) -> list[Row]:
    """Entry, method and path, for each catalogue entry of the table's kind."""
    found = []
    for name, kind in KINDS.items():
        for method, path in pairs(table[kind.table]):
            path = path.replace("R", kind.repository, 1) if path[0] == "R" else path
            found.append((name, method, kind.root + path))
    return found
