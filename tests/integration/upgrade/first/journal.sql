PRAGMA user_version=1;
BEGIN TRANSACTION;
CREATE TABLE acknowledged (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, sequence INTEGER NOT NULL);
INSERT INTO "acknowledged" VALUES(1,1,8);
CREATE TABLE events (
    epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
    type NOT NULL, reason NOT NULL, kind NOT NULL, namespace NOT NULL, name NOT NULL, object_uid NOT NULL, message NOT NULL, fields NOT NULL, first_at NOT NULL, last_at NOT NULL, count NOT NULL, simulated NOT NULL,
    PRIMARY KEY (epoch, sequence)
) WITHOUT ROWID;
INSERT INTO "events" VALUES(1,1,'Normal','HypervisorStarted','Node','','fixture','f55ba501-6fd6-447a-ae28-8c5f46e578d1','version 0.1.0, start 1, 0 allocations adopted','epoch1',1.79605794164096450806e+09,1.79605794164096450806e+09,1,1);
INSERT INTO "events" VALUES(1,2,'Normal','NodeReady','Node','','fixture','f55ba501-6fd6-447a-ae28-8c5f46e578d1','8 GPUs can be shared','codeOkgpus8',1.79605794347823953622e+09,1.79605794347823953622e+09,1,1);
INSERT INTO "events" VALUES(1,3,'Normal','AllocationGranted','Allocation','','soft','914fbb47-741f-4990-b004-858c61073d72','''soft'' was granted 25% and 8Gi on GPU-842a5056-c0ba-513b-b8d7-410bb14ef7bf, soft isolation','granted25% and 8Gi on GPU-842a5056-c0ba-513b-b8d7-410bb14ef7bf',1.7960579511234710217e+09,1.7960579511234710217e+09,1,1);
INSERT INTO "events" VALUES(1,4,'Normal','AllocationGranted','Allocation','','second','614016f8-958b-455c-af9d-6fe7e40f75ce','''second'' was granted 31.547% and 8Gi on GPU-842a5056-c0ba-513b-b8d7-410bb14ef7bf, soft isolation','granted31.547% and 8Gi on GPU-842a5056-c0ba-513b-b8d7-410bb14ef7bf',1.79605795378702139857e+09,1.79605795378702139857e+09,1,1);
INSERT INTO "events" VALUES(1,5,'Normal','AllocationGranted','Allocation','','damaged','1f95a9a8-c944-497b-bb44-b63ba024b5ff','''damaged'' was granted 10% and 2Gi on GPU-ef01d118-7278-5595-95ae-357abcdade56, soft isolation','granted10% and 2Gi on GPU-ef01d118-7278-5595-95ae-357abcdade56',1.79605795755802226062e+09,1.79605795755802226062e+09,1,1);
INSERT INTO "events" VALUES(1,6,'Normal','AllocationGranted','Allocation','','gone','cc4f6c8b-133c-4d21-b5f6-49aad420171f','''gone'' was granted 10% and 2Gi on GPU-3770c2b7-50e6-5116-a316-4fcfe86fe0c1, soft isolation','granted10% and 2Gi on GPU-3770c2b7-50e6-5116-a316-4fcfe86fe0c1',1.79605795951911187176e+09,1.79605795951911187176e+09,1,1);
INSERT INTO "events" VALUES(1,7,'Normal','AllocationReleased','Allocation','','gone','cc4f6c8b-133c-4d21-b5f6-49aad420171f','''gone'' was released','',1796057961.1476,1796057961.1476,1,1);
INSERT INTO "events" VALUES(1,8,'Warning','AllocationRefused','Allocation','','toomuch','','''toomuch'' was refused: GPU 0 (GPU-842a5056-c0ba-513b-b8d7-410bb14ef7bf) has 43.453% of its GPU time left (56.547% of 100% are promised), and 90% are asked for; ask for at most 43.453%, or for another GPU','fielddevices[0].requests.computerefusalINSUFFICIENT_TFLOPS',1.79605796267922925945e+09,1.79605796267922925945e+09,1,1);
CREATE TABLE pending (
    type NOT NULL, reason NOT NULL, kind NOT NULL, namespace NOT NULL, name NOT NULL, object_uid NOT NULL, message NOT NULL, fields NOT NULL, first_at NOT NULL, last_at NOT NULL, count NOT NULL, simulated NOT NULL,
    PRIMARY KEY (reason, kind, namespace, name, object_uid)
) WITHOUT ROWID;
INSERT INTO "pending" VALUES('Warning','AllocationRefused','Allocation','','toomuch','','''toomuch'' was refused: GPU 0 (GPU-842a5056-c0ba-513b-b8d7-410bb14ef7bf) has 43.453% of its GPU time left (56.547% of 100% are promised), and 90% are asked for; ask for at most 43.453%, or for another GPU','fielddevices[0].requests.computerefusalINSUFFICIENT_TFLOPS',1.79605796542528414728e+09,1.79605796715188074114e+09,2,1);
COMMIT;
