-- table: settings

-- name: mode
select mode from settings
